"""Tests for the grammar checker: which grammars it refuses, and its messages."""

import json
from pathlib import Path
from typing import Any

import pytest

from glimpse.engine.checkpoint.text.grammar_check import (
    MAX_GRAMMAR_BYTES,
    EnforcedGrammar,
    GrammarChecker,
    GrammarError,
)
from glimpse.engine.checkpoint.text.tokenizer import load_tokenizer
from glimpse.engine.protocol.sampling_params import Grammar, GrammarKind


@pytest.fixture(scope="module")
def checker(tiny_checkpoint: Path) -> GrammarChecker:
    return GrammarChecker(load_tokenizer(tiny_checkpoint))


def refusal(checker: GrammarChecker, kind: GrammarKind, text: str) -> str:
    with pytest.raises(GrammarError) as caught:
        checker.check(Grammar(kind=kind, text=text))
    return str(caught.value)


def chain(length: int) -> dict[str, Any]:
    links = {f"a{index}": {"items": {"$ref": f"#/$defs/a{index + 1}"}} for index in range(length)}
    return {"$ref": "#/$defs/a0", "$defs": links | {f"a{length}": {}}}


def nest(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


def inside(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": {"type": "array", "items": schema}}}


AT = "#/properties/a/items"


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"$ref": "https://example.com/schema"}, f"{AT}: '$ref' to 'https://example.com/schema': only references"),
        ({"$ref": "#anchor"}, f"{AT}: '$ref' to '#anchor': only references that begin with #/ are supported"),
        ({"$ref": "#/$defs/none"}, f"{AT}: '$ref' to '#/$defs/none', which does not exist in the schema"),
        ({"$id": "inner", "items": {"$ref": "#"}}, f"{AT}: '$id' of a schema with '$ref' inside"),
        ({"patternProperties": {f"^{n}": {} for n in range(17)}}, f"{AT}: the schema has more than 16 'patternPropert"),
        ({"required": [f"p{n}" for n in range(2001)]}, f"{AT}: the schema names more than 1000 properties"),
        (nest(101), "schemas are nested more than 100 levels deep, references included"),
        (nest(130), "the JSON is nested more than 120 levels deep"),
    ],
)
def test_refuses_references_that_lead_nowhere_and_schemas_that_are_too_large(
    checker: GrammarChecker, schema: dict[str, Any], message: str
):
    assert message in refusal(checker, GrammarKind.JSON_SCHEMA, json.dumps(inside(schema)))


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("", "expected JSON: "),
        ("{", "expected JSON: "),
        ("[" * 200_000, "expected at most 131072 bytes, got "),
        ("[" * 10_000, "expected JSON: "),
        ("[]", "#: expected a JSON object as schema"),
        ("true", "#: expected a JSON object as schema"),
        ('{"type": "integer", "minimum": 5, "maximum": 3}', "minimum (5) is greater than maximum (3)"),
        ('{"type": "string", "pattern": "("}', "unclosed group"),
        ('{"type": "text"}', "text"),
        ('{"enum": []}', "anyOf is empty"),
        ('{"minItems": -1}', "minItems"),
        ('{"properties": []}', "properties"),
        ('{"$ref": "#"}', "no text that can be generated satisfies it"),
        (json.dumps(chain(60)), "nested more than 100 levels deep, references included"),
        (json.dumps({"const": "a" * MAX_GRAMMAR_BYTES}), "expected at most 131072 bytes, got "),
        (
            json.dumps({"allOf": [{"anyOf": [{"properties": {f"{i}{j}": {}}} for j in range(4)]} for i in range(12)]}),
            "schema too large",
        ),
    ],
)
def test_refuses_invalid_too_large_or_unsatisfiable_schemas(checker: GrammarChecker, schema: str, message: str):
    assert message in refusal(checker, GrammarKind.JSON_SCHEMA, schema)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "integer", "format": "int32"},
        {"properties": {"not": {"type": "null"}, "format": {"const": "x"}, "$ref": {"type": "null"}}},
        {"type": "object", "minProperties": 2, "required": ["a"]},
        {"$defs": {"unused": {"not": {}}}, "type": "null"},
        {"title": "T", "nullable": True, "discriminator": {"propertyName": "x"}, "deprecated": True, "x-y": {"not": 1}},
        {"type": "array", "minItems": 1000, "maxItems": 10**9},
        {"type": "string", "maxLength": 10**9},
        {"type": "string", "pattern": "^--[a-z-]+\\[\\]$"},
        {"type": "string", "pattern": "^((a{1000}){1000}){1000}$"},
        {"multipleOf": 0.01, "minimum": 0},
        {"const": "a" * 60_000},
        chain(40),
        nest(90),
    ],
)
def test_accepts_enforceable_schemas(checker: GrammarChecker, schema: dict[str, Any]):
    grammar = Grammar(kind=GrammarKind.JSON_SCHEMA, text=json.dumps(schema))
    assert checker.check(grammar) == EnforcedGrammar(grammar=grammar)


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (GrammarKind.REGEX, "(", "unclosed group"),
        (GrammarKind.REGEX, "(a)\\1", "backreferences are not supported"),
        (GrammarKind.REGEX, "a$b", "lookarounds not supported"),
        (GrammarKind.REGEX, "(" * 20_000 + ")" * 20_000, "exceed the maximum number of nested parentheses"),
        (GrammarKind.REGEX, "a\\", "the pattern 'a\\\\' ends with a backslash"),
        (GrammarKind.REGEX, "[^\\x00-\\x{10ffff}]", "no text that can be generated satisfies it"),
        (GrammarKind.CHOICE, "[]", "expected at least one choice"),
        (GrammarKind.CHOICE, '["a", 1]', "expected a JSON list of strings"),
        (GrammarKind.CHOICE, '{"a": 1}', "expected a JSON list of strings"),
        (GrammarKind.CHOICE, "yes", "expected JSON: "),
        (GrammarKind.CHOICE, '["\\ud800"]', "not a Unicode scalar value"),
        (GrammarKind.LARK, "", "no start rule found"),
        (GrammarKind.LARK, "start: missing", 'unknown name: "missing"'),
        (GrammarKind.LARK, 'start: "a', "lexer error"),
        (GrammarKind.LARK, "start: <|nobody|>", "unknown special token"),
        (GrammarKind.LARK, 'start: start "a"', "no text that can be generated satisfies it"),
        (GrammarKind.LARK, "start: %json nothing", "expected JSON after %json"),
        (GrammarKind.LARK, "start: a\na[temperature=0.5]: /b+/", "the attribute 'temperature' cannot be enforced"),
        (GrammarKind.LARK, 'start: a\na[stop="x"]: /b+/', "the attribute 'stop' cannot be enforced"),
        (GrammarKind.LARK, '%llguidance {"allow_invalid_utf8": true}\nstart: "a"', "expected only"),
        (GrammarKind.LARK, '{"grammars": []}', "expecting rule"),
        (
            GrammarKind.LARK,
            "start: a0\n" + "".join(f"a{n}: a{n + 1}\n" for n in range(501)),
            "500 definitions, got 502",
        ),
        (GrammarKind.LARK, "start: " + "(" * 20_000, "too deeply nested"),
    ],
)
def test_refuses_other_unenforceable_grammars(checker: GrammarChecker, kind: GrammarKind, text: str, message: str):
    found = refusal(checker, kind, text)
    assert message in found
    assert "\n" not in found
    assert len(found) < 400


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (GrammarKind.JSON_OBJECT, ""),
        (GrammarKind.REGEX, "((a{1000}){1000}){1000}"),
        (GrammarKind.REGEX, ""),
        (GrammarKind.REGEX, "a/b\\/c\\\\/d"),
        (GrammarKind.CHOICE, '["", "a/b", "\\\\"]'),
        (GrammarKind.LARK, 'start: "%json {" /%json [{]/ // %json {\n'),
        (GrammarKind.LARK, 'start: <|im_start|> "x" %json {"type": "null"}'),
        (GrammarKind.LARK, 'start: w\nw[capture="temperature", lazy]: /a+b/'),
        (GrammarKind.LARK, 'A: "a"{1000000000}\nstart: A'),
    ],
)
def test_accepts_other_enforceable_grammars(checker: GrammarChecker, kind: GrammarKind, text: str):
    assert checker.check(Grammar(kind=kind, text=text)).unenforced == ()


def test_drops_keywords_of_schemas_in_lark_grammars(checker: GrammarChecker):
    lark = 'start: %json {"not": {}, "type": "null"} | %json {"x-guidance": {"lenient": true}} | "x"'
    found = checker.check(Grammar(kind=GrammarKind.LARK, text=lark))
    assert found.unenforced == ("#/not", "#/x-guidance")
    assert found.grammar.text == 'start: %json {"type": "null"} | %json {} | "x"'


def test_vocabularies_may_have_gaps(tiny_checkpoint: Path, tmp_path: Path) -> None:
    document = json.loads((tiny_checkpoint / "tokenizer.json").read_bytes())
    for token in document["added_tokens"]:
        token["id"] += 1000
    vocabulary = document["model"]["vocab"]
    added = {token["content"] for token in document["added_tokens"]}
    document["model"]["vocab"] = {token: index for token, index in vocabulary.items() if token not in added}
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    choice = Grammar(kind=GrammarKind.CHOICE, text='["yes", "no"]')
    assert GrammarChecker(load_tokenizer(tmp_path)).check(choice) == EnforcedGrammar(grammar=choice)
