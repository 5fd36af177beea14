"""Tests for what is enforced of JSON Schemas: the keywords that are dropped, and only those."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from glimpse.engine.checkpoint.grammar.lark import to_lark
from glimpse.engine.checkpoint.text.grammar_check import EnforcedGrammar, GrammarChecker, GrammarError
from glimpse.engine.checkpoint.text.tokenizer import load_tokenizer
from glimpse.engine.protocol.sampling_params import Grammar, GrammarKind

BYTES = LLTokenizer("byte")
NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}
CAT = {"type": "object", "properties": {"kind": {"const": "cat"}}, "required": ["kind"]}
DOG = {"type": "object", "properties": {"kind": {"const": "dog"}}, "required": ["kind"]}


@pytest.fixture(scope="module")
def checker(tiny_checkpoint: Path) -> GrammarChecker:
    return GrammarChecker(load_tokenizer(tiny_checkpoint))


def enforced(checker: GrammarChecker, schema: dict[str, Any]) -> EnforcedGrammar:
    return checker.check(Grammar(kind=GrammarKind.JSON_SCHEMA, text=json.dumps(schema)))


def accepted(grammar: Grammar, values: list[Any]) -> Iterator[bool]:
    """Tells of each value whether the engine lets a model write it."""
    start = LLMatcher(BYTES, to_lark(grammar), log_level=0)
    for value in values:
        matcher = start.deep_copy()
        text = json.dumps(value, separators=(",", ":")).encode()
        yield matcher.try_consume_tokens(list(text)) == len(text) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("schema", "dropped"),
    [
        ({"not": {}}, "not"),
        ({"if": {}, "then": {"const": 1}, "else": {"const": 2}}, "if then else"),
        ({"type": "array", "uniqueItems": True, "maxItems": 3}, "uniqueItems"),
        ({"type": "array", "contains": {"const": 1}, "minContains": 2}, "contains minContains"),
        ({"type": "object", "propertyNames": {"pattern": "a"}, "required": ["a"]}, "propertyNames"),
        ({"dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        ({"dependentSchemas": {"a": {"required": ["b"]}}}, "dependentSchemas"),
        ({"dependencies": {"a": ["b"]}}, "dependencies"),
        ({"unevaluatedProperties": False, "unevaluatedItems": False}, "unevaluatedProperties unevaluatedItems"),
        ({"x-guidance": {"lenient": True}, "type": "null"}, "x-guidance"),
        ({"$dynamicRef": "#a", "type": "null"}, "$dynamicRef"),
        ({"type": "string", "format": "path", "maxLength": 5}, "format"),
        ({"type": "string", "format": "binary"}, "format"),
        ({"type": "string", "format": "password", "writeOnly": True}, "format"),
        ({"prefixItems": [{}], "additionalItems": False}, "additionalItems"),
        ({"minProperties": 2}, "minProperties"),
        ({"properties": {"a": {}}, "maxProperties": 1}, "maxProperties"),
        ({"type": "integer", "maximum": 2**64 - 1, "minimum": 0}, "maximum"),
        ({"type": "integer", "const": 2**53 + 1}, "const"),
        ({"type": "array", "enum": [["\x01"]]}, "enum"),
        ({"type": "string", "pattern": "[[:alpha:]]", "maxLength": 5}, "pattern"),
        ({"type": "string", "pattern": "^(?!a)b", "maxLength": 5}, "pattern"),
        ({"type": "string", "pattern": r"\bword\b"}, "pattern"),
        ({"type": "string", "pattern": r"(a)\1"}, "pattern"),
        (
            {"patternProperties": {"a": {}, "b": {}}, "additionalProperties": False},
            "patternProperties additionalProperties",
        ),
        ({"patternProperties": {"(?=a)": {}}, "required": ["a"]}, "patternProperties"),
        (
            {"anyOf": [{"maxItems": 1}], "patternProperties": {"^z": {}}, "additionalProperties": False},
            "patternProperties additionalProperties",
        ),
        ({"type": "integer", "multipleOf": 86_400}, "multipleOf"),
        ({"oneOf": [{"type": "string", "maxLength": 3}, {"type": "string"}]}, "oneOf"),
    ],
)
def test_drops_only_the_keywords_that_cannot_be_enforced(checker: GrammarChecker, schema: dict[str, Any], dropped: str):
    kept = {name: value for name, value in schema.items() if name not in dropped.split() or name == "oneOf"}
    found = enforced(checker, {"properties": {"a/b": schema}, "required": ["a/b"]})
    assert found.unenforced == tuple(f"#/properties/a~1b/{keyword}" for keyword in dropped.split())
    assert json.loads(found.grammar.text) == {"properties": {"a/b": kept}, "required": ["a/b"]}


@pytest.mark.parametrize(
    ("schema", "dropped"),
    [
        ({"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]}, ["#/allOf/1/multipleOf"]),
        ({"allOf": [{"maxProperties": 1}, {"properties": {"a": {}}}]}, ["#/allOf/0/maxProperties"]),
        (
            {"allOf": [{"patternProperties": {"a": {}}}, {"patternProperties": {"b": {}}}]},
            ["#/allOf/0/patternProperties", "#/allOf/1/patternProperties"],
        ),
        (
            {"properties": {"a": {"pattern": "^a"}, "b": {"pattern": "(?=b)"}, "c": {"pattern": "^c"}}},
            ["#/properties/b/pattern"],
        ),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"not": {}}, "b": {"not": {}}}}, ["#/$defs/a/not"]),
        (
            {
                "$ref": "#/$defs/node",
                "$defs": {"node": NODE | {"properties": {"n": {"$ref": "#/$defs/node", "minProperties": 1}}}},
            },
            ["#/$defs/node/properties/n/minProperties"],
        ),
        (
            {
                "$ref": "#/$defs/node",
                "$defs": {
                    "node": NODE | {"properties": {"n": {"allOf": [{"$ref": "#/$defs/node"}, {}], "type": "object"}}}
                },
            },
            ["#/$defs/node/properties/n/allOf"],
        ),
        (
            {
                "anyOf": [{"additionalProperties": {"$ref": "#/$defs/x"}}],
                "patternProperties": {"^z": {"$ref": "#/$defs/x"}},
                "$defs": {"x": {"type": ["object", "string"], "properties": {"a": {"$ref": "#/$defs/x"}}}},
            },
            ["#/anyOf"],
        ),
        ({"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}], "$defs": {"a": CAT}}, ["#/oneOf"]),
        ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, ["#/oneOf"]),
    ],
)
def test_drops_what_cannot_be_combined(checker: GrammarChecker, schema: dict[str, Any], dropped: list[str]):
    assert list(enforced(checker, schema).unenforced) == dropped


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "uniqueItems": False},
        {"type": "object", "propertyNames": {"type": "string"}, "unevaluatedProperties": True},
        {"type": "integer", "format": "int32"},
        {"properties": {"not": {"type": "null"}, "format": {"const": "x"}}},
        {"title": "T", "nullable": True, "deprecated": True, "x-y": {"not": 1}},
        {"properties": {"a": {"$id": "a", "type": "null"}}},
        {"$dynamicAnchor": "a", "type": "null"},
        {
            "$ref": "#/$defs/node",
            "$defs": {"node": NODE | {"properties": {"n": {"$ref": "#/$defs/node", "deprecated": True}}}},
        },
        {"oneOf": [{"type": "string"}, {"type": ["integer", "null"]}, {"enum": [True]}]},
        {"oneOf": [{"const": "a", "title": "A"}, {"const": "b", "title": "B"}, {"const": 1}]},
        {"oneOf": [{"$ref": "#/$defs/c"}, {"$ref": "#/$defs/d"}], "discriminator": {}, "$defs": {"c": CAT, "d": DOG}},
        {"oneOf": [CAT, {"type": "object", "properties": {}, "additionalProperties": False}]},
        {"minProperties": 1, "properties": {"a": {}, "b": {}}, "additionalProperties": False},
    ],
)
def test_tells_nothing_where_nothing_is_lost(checker: GrammarChecker, schema: dict[str, Any]):
    assert enforced(checker, schema).unenforced == ()


SCALARS = [None, True, 0, 1, 2, -3, 12, "", "a", "ab", "b/c"]
LISTS = [[], [0], [0, 0], [0, 1], ["a", 1], [[]], [{"a": 1}]]
OBJECTS: list[Any] = [
    {},
    {"a": 0},
    {"a": "a"},
    {"a": 1, "b": 1},
    {"b": "ab"},
    {"b": 1, "z": 1},
    {"z": "b"},
    {"a": {"a": 0}},
]
VALUES = [*SCALARS, *LISTS, *OBJECTS]


def keyword(name: str, *values: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.sampled_from(values).map(lambda value: {name: value})


def below(name: str, inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return inner.map(lambda value: {name: value})


LEAVES = st.one_of(
    keyword(
        "type", "null", "boolean", "integer", "string", "array", "object", ["string", "integer"], ["object", "null"]
    ),
    keyword("enum", ["a", 1, None], [0], ["ab", "b/c", True]),
    keyword("const", 1, "a", True),
    keyword("minimum", 0, 2),
    keyword("maximum", 1, 2**60),
    keyword("multipleOf", 2, 100_000),
    keyword("minLength", 1, 2),
    keyword("pattern", "^a", "^(?!a)", "b$"),
    keyword("format", "path", "binary"),
    keyword("uniqueItems", True, False),
    keyword("maxItems", 1),
    keyword("minItems", 1),
    keyword("required", ["a"], ["a", "b"], []),
    keyword("minProperties", 1, 2),
    keyword("maxProperties", 1),
    keyword("additionalProperties", False, True),
    keyword("dependentRequired", {"a": ["b"]}),
    keyword("propertyNames", {"enum": ["a"]}, {"type": "string"}),
    st.just({"$ref": "#/$defs/x"}),
)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    several = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        *(below(name, several) for name in ("anyOf", "oneOf", "allOf", "prefixItems")),
        *(below(name, inner) for name in ("items", "not", "if", "then", "else", "contains", "additionalProperties")),
        st.tuples(inner, inner).map(lambda both: {"properties": {"a": both[0], "b": both[1]}}),
        below("patternProperties", st.fixed_dictionaries({"^z": inner})),
    )


def merged(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: value for part in parts for name, value in part.items()}


SCHEMAS = st.lists(
    st.recursive(
        LEAVES, lambda inner: st.lists(nested(inner) | LEAVES, min_size=1, max_size=3).map(merged), max_leaves=8
    ),
    min_size=1,
    max_size=3,
).map(merged)
X = {"type": ["object", "string", "integer"], "properties": {"a": {"$ref": "#/$defs/x"}, "b": {}}}


@given(SCHEMAS)
def test_allows_all_that_the_client_s_schema_allows_and_no_more_unless_it_says_so(
    checker: GrammarChecker, schema: dict[str, Any]
):
    schema = schema | {"$defs": {"x": X}}
    validator = jsonschema.Draft202012Validator(schema)
    valid = {json.dumps(value) for value in VALUES if validator.is_valid(value)}  # as text: True equals 1
    try:
        found = enforced(checker, schema)
    except GrammarError:
        assert not valid
        return
    allowed = {json.dumps(value) for value, may in zip(VALUES, accepted(found.grammar, VALUES), strict=True) if may}
    assert not valid - allowed
    assert found.unenforced or not allowed - valid
