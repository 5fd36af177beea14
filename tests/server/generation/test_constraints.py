"""Tests for output constraints, and for refusals of what cannot be enforced."""

import json
from dataclasses import replace
from threading import Thread
from typing import Any

import pytest

from glimpse.engine.checkpoint.grammar.matcher import GrammarCompiler
from glimpse.engine.checkpoint.location import DEFAULT_MODEL
from glimpse.engine.checkpoint.text.conversation import NamedTool, ToolChoice, ToolDefinition, ToolMode
from glimpse.engine.checkpoint.text.grammar_check import CheckStoppedError, GrammarChecker
from glimpse.engine.checkpoint.text.tokenizer import load_tokenizer
from glimpse.engine.checkpoint.text.tools import FORMATS
from glimpse.engine.protocol.sampling_params import Grammar, GrammarKind
from glimpse.server.errors import InvalidRequest
from glimpse.server.generation.constraints import UNCONSTRAINED, ConstraintBuilder
from glimpse.server.request import Constraint, GenerationRequest, Tools
from tests.server.requests import GENERATION

TOKENIZER = load_tokenizer(DEFAULT_MODEL)
CHECKER = GrammarChecker(TOKENIZER)
ENFORCED = {"properties": {"at": {"type": "integer"}}, "required": ["at"]}
PARTLY = {
    "type": "object",
    "properties": {"t": {"type": "string", "format": "path"}, "n": {"type": "integer"}},
    "required": ["t", "n"],
    "additionalProperties": False,
}
INVALID = {"properties": {"at": {"$ref": "#/$defs/nothing"}}}


def tool(parameters: dict[str, Any], *, strict: bool = False) -> ToolDefinition:
    return ToolDefinition(name="look", description=None, parameters=json.dumps(parameters), strict=strict)


def asked(
    *tools: ToolDefinition, choice: ToolChoice = ToolMode.AUTO, constraint: Constraint | None = None
) -> GenerationRequest:
    offered = Tools(definitions=tools, choice=choice, parallel=True) if tools else None
    return replace(GENERATION, constraint=constraint, tools=offered)


def builder(format_name: str | None = "hermes") -> ConstraintBuilder:
    tool_format = None if format_name is None else FORMATS[format_name]
    return ConstraintBuilder(checker=CHECKER, tokenizer=TOKENIZER, tool_format=tool_format)


def refusal(request: GenerationRequest, format_name: str | None = "hermes") -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        builder(format_name).build(request)
    return caught.value


def test_request_without_constraints_is_unconstrained() -> None:
    assert builder().build(asked()) == UNCONSTRAINED


@pytest.mark.parametrize("format_name", FORMATS)
def test_free_choice_constrains_calls_once_they_are_opened(format_name: str) -> None:
    grammar = builder(format_name).build(asked(tool(ENFORCED))).grammar
    assert grammar is not None
    assert grammar.trigger is not None
    assert '"integer"' in grammar.text


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("choice", [ToolMode.AUTO, ToolMode.REQUIRED, NamedTool(name="look")])
@pytest.mark.parametrize("format_name", FORMATS)
def test_enforces_the_rest_of_a_tool_s_schema_and_tells_the_keyword(
    format_name: str, choice: ToolChoice, strict: bool
) -> None:
    other = replace(tool(ENFORCED), name="other")
    constraints = builder(format_name).build(asked(other, tool(PARTLY, strict=strict), choice=choice))
    assert constraints.unenforced == ("tools[1].function.parameters#/properties/t/format",)
    assert constraints.grammar is not None
    assert '"integer"' in constraints.grammar.text
    assert '"path"' not in constraints.grammar.text


def test_tells_the_same_of_a_response_format_and_of_structured_outputs() -> None:
    for field in ("response_format.json_schema.schema", "structured_outputs.json"):
        schema = Constraint(grammar=Grammar(kind=GrammarKind.JSON_SCHEMA, text=json.dumps(PARTLY)), field=field)
        constraints = builder().build(asked(constraint=schema))
        assert constraints.unenforced == (f"{field}#/properties/t/format",)
        assert constraints.grammar is not None
        assert "format" not in json.loads(constraints.grammar.text)["properties"]["t"]
        assert json.loads(constraints.grammar.text)["additionalProperties"] is False


def test_logs_each_kind_of_keyword_once(caplog: pytest.LogCaptureFixture) -> None:
    several = builder()
    for _ in range(2):
        several.build(asked(tool(PARTLY), replace(tool(PARTLY), name="other")))
    assert [line.partition(";")[0] for line in caplog.messages] == [
        "tools[].function.parameters: the keyword 'format' is not enforced"
    ]


@pytest.mark.parametrize("choice", [ToolMode.AUTO, ToolMode.REQUIRED])
def test_tools_with_refused_schemas_take_any_object_and_refuse_nothing(choice: ToolChoice) -> None:
    mixed = builder().build(asked(tool(ENFORCED), replace(tool(INVALID), name="other"), choice=choice))
    assert mixed.grammar is not None
    assert '"integer"' in mixed.grammar.text
    assert "nothing" not in mixed.grammar.text
    assert mixed.unenforced == ("tools[1].function.parameters#",)
    many = [replace(tool({"description": "x" * 4000} | ENFORCED), name=f"look_{index}") for index in range(40)]
    large = builder().build(asked(*many, choice=choice))
    assert large.grammar is not None
    assert "look_39" in large.grammar.text
    assert '"integer"' not in large.grammar.text
    assert large.unenforced == tuple(f"tools[{index}].function.parameters#" for index in range(40))


@pytest.mark.parametrize("choice", [ToolMode.AUTO, ToolMode.REQUIRED])
def test_a_schema_that_only_the_compiler_refuses_frees_its_own_tool_alone(choice: ToolChoice) -> None:
    refused = replace(tool({"properties": {"at": {"type": "string", "pattern": "(left"}}}), name="other")
    mixed = builder().build(asked(tool(ENFORCED), refused, choice=choice))
    assert mixed.unenforced == ("tools[1].function.parameters#",)
    assert mixed.grammar is not None
    assert '"integer"' in mixed.grammar.text


def test_too_many_tools_are_not_constrained_or_refused() -> None:
    too_many = [replace(tool(ENFORCED), name=f"look_{index}") for index in range(300)]
    free = builder().build(asked(*too_many))
    assert (free.grammar, free.unenforced) == (None, ("tools",))
    assert refusal(asked(*too_many, choice=ToolMode.REQUIRED)).field == "tools"


@pytest.mark.parametrize("choice", [ToolMode.REQUIRED, NamedTool(name="look")])
@pytest.mark.parametrize("format_name", FORMATS)
def test_required_tools_are_constrained_by_a_grammar(format_name: str, choice: ToolChoice) -> None:
    constraints = builder(format_name).build(asked(tool(ENFORCED), choice=choice))
    assert constraints.grammar is not None
    assert '"integer"' in constraints.grammar.text


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Grammar]:
    """The grammars that are compiled from now on."""
    grammars, compile_grammar = list[Grammar](), GrammarCompiler._compile  # pyright: ignore[reportPrivateUsage]

    def compile_told(compiler: GrammarCompiler, grammar: Grammar) -> Any:
        grammars.append(grammar)
        return compile_grammar(compiler, grammar)

    monkeypatch.setattr(GrammarCompiler, "_compile", compile_told)
    return grammars


def large(name: str, kib: int) -> ToolDefinition:
    """A tool with a schema of this size, unlike those of other names."""
    return replace(tool({"description": name + "x" * (kib << 10)} | ENFORCED), name=name)


def of_schema(kib: int, field: str = "structured_outputs.json") -> Constraint:
    text = json.dumps({"description": "x" * (kib << 10)})
    return Constraint(grammar=Grammar(kind=GrammarKind.JSON_SCHEMA, text=text), field=field)


def test_no_other_thread_changes_what_is_remembered_while_keys_are_compared() -> None:
    built = builder()
    other = Thread(target=built.build, args=(asked(tool(ENFORCED)),))
    waited = list[bool]()

    class Compared(Constraint):
        __hash__ = Constraint.__hash__

        def __eq__(self, value: object) -> bool:
            if not waited:
                other.start()
                other.join(0.5)
                waited.append(other.is_alive())
            return super().__eq__(value)

    first, second = (Compared(grammar=of_schema(0).grammar, field="format") for _ in range(2))
    built.build(asked(constraint=first))
    assert built.find(asked(constraint=second)) is not None
    other.join()
    assert waited == [True]


def test_all_schemas_of_a_request_share_a_budget_which_is_checked_first(compiled: list[Grammar]) -> None:
    tools = [large(f"look_{index}", 100) for index in range(11)]
    refused = refusal(asked(*tools))
    assert refused.field == "tools"
    assert "expected at most 1048576 bytes of schemas in a request, got 1127" in refused.message
    assert refusal(asked(*tools[:5], constraint=of_schema(600))).field == "structured_outputs.json"
    assert refusal(asked(constraint=of_schema(1100))).field == "structured_outputs.json"
    named = builder().build(asked(*tools, choice=NamedTool(name="look_3")))
    assert named.grammar is not None, "the model may not call the others"
    assert len(compiled) == 1


def test_schemas_that_are_too_large_together_are_not_compiled_each(compiled: list[Grammar]) -> None:
    constraints = builder().build(asked(*(large(f"look_{index}", 20) for index in range(10))))
    assert constraints.unenforced == tuple(f"tools[{index}].function.parameters#" for index in range(10))
    assert len(compiled) == 1


def test_a_build_ends_between_two_schemas_once_nobody_waits_for_it(compiled: list[Grammar]) -> None:
    refused = replace(tool({"properties": {"at": {"type": "string", "pattern": "(left"}}}), name="refused")
    tools = [refused, *(large(f"leave_{index}", 1) for index in range(20))]
    with pytest.raises(CheckStoppedError):
        builder().build(asked(*tools), lambda: len(compiled) >= 3)
    assert len(compiled) == 3


def test_equal_schemas_are_compiled_once(compiled: list[Grammar]) -> None:
    one = builder()
    tools = [tool({"title": "once"} | ENFORCED), replace(tool(PARTLY), name="other")]
    request = asked(*tools, choice=ToolMode.REQUIRED)
    assert one.find(request) is None
    built = one.build(request)
    assert one.find(asked(*tools, choice=ToolMode.REQUIRED)) == built
    assert one.find(asked(*reversed(tools), choice=ToolMode.REQUIRED)) is None
    assert one.find(asked(*tools)) is None
    assert len(compiled) == 1


def test_refuses_invalid_constraints_by_field() -> None:
    strict = refusal(asked(tool(ENFORCED), tool(INVALID, strict=True)))
    assert (strict.field, strict.reason) == ("tools[1].function.parameters", "unsupported")
    pattern = Constraint(grammar=Grammar(kind=GrammarKind.REGEX, text="("), field="structured_outputs.regex")
    assert refusal(asked(constraint=pattern)).field == "structured_outputs.regex"


@pytest.mark.parametrize(
    ("schema", "pointers"),
    [
        ({"properties": {"at": {"type": "string", "pattern": "a", "maxLength": 2}}}, ["#/properties/at/pattern"]),
        ({"properties": {"at": {"type": ["string", "null"], "enum": ["a", None]}}}, ["#/properties/at/enum"]),
        ({"properties": {"at": {"anyOf": [{"type": "string"}, {"type": "null"}], "title": "At"}}}, []),
        (
            {"properties": {"at": {"anyOf": [{"type": "string", "minLength": 1}, {"type": "null"}]}}},
            ["#/properties/at/anyOf"],
        ),
        ({"properties": {"a\nt": {"type": "integer"}}, "required": ["a\nt"]}, ["#/properties", "#/required"]),
        ({"properties": {"at": {"type": "integer", "minimum": 1}}, "anyOf": [{"required": ["at"]}]}, ["#/anyOf"]),
        ({}, []),
    ],
)
@pytest.mark.parametrize("strict", [False, True])
def test_tells_what_is_not_enforced_in_the_model_s_format(schema: Any, pointers: list[str], strict: bool) -> None:
    definition = tool({"type": "object"} | schema, strict=strict)
    for choice in (ToolMode.AUTO, ToolMode.REQUIRED):
        constraints = builder("qwen3_coder").build(asked(definition, choice=choice))
        assert constraints.unenforced == tuple(f"tools[0].function.parameters{pointer}" for pointer in pointers)
        assert constraints.grammar is not None
    assert builder("hermes").build(asked(definition)).unenforced == ()


@pytest.mark.parametrize(
    ("schema", "pointers"),
    [
        ({"properties": {"a": {"type": "string", "pattern": "a+", "maxLength": 5}}}, ["#/properties/a/pattern"]),
        ({"properties": {"a": {"type": "array", "items": {"type": "integer", "maximum": 5}, "maxItems": 2}}}, []),
        (
            {"properties": {"a": {"type": "object", "properties": {"b": {"minimum": 5}}}}},
            ["#/properties/a/properties/b/minimum"],
        ),
        ({"properties": {"a": {"allOf": [{"type": "string"}]}}}, ["#/properties/a/allOf"]),
        (
            {"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": "string", "format": "date"}}},
            ["#/$defs/x/format"],
        ),
        ({"additionalProperties": {"type": "string"}, "maxProperties": 3}, ["#/maxProperties"]),
    ],
)
def test_tells_what_is_not_enforced_between_quotes_of_their_own(schema: Any, pointers: list[str]) -> None:
    definition = tool({"type": "object"} | schema, strict=True)
    for choice in (ToolMode.AUTO, ToolMode.REQUIRED):
        constraints = builder("gemma4").build(asked(definition, choice=choice))
        assert constraints.unenforced == tuple(f"tools[0].function.parameters{pointer}" for pointer in pointers)
        assert constraints.grammar is not None


@pytest.mark.parametrize(
    ("format_name", "answer"),
    [
        ("qwen3_coder", "<function=look>\n<parameter=a>\n1\n</parameter>\n</function>"),
        ("gemma4", "<|tool_call>call:look{a:1}<tool_call|>"),
    ],
)
@pytest.mark.parametrize("choice", [ToolMode.REQUIRED, ToolMode.AUTO])
@pytest.mark.parametrize(
    "schema",
    [
        {"properties": 5},
        {"properties": {"a": 5, "b": True, "c": {"type": 5}, "d": {"type": [5, {}]}}, "required": [5, {}]},
        {"properties": {"a": {"enum": 5, "anyOf": 5, "$ref": 5}}, "required": "a"},
        {"properties": {"a": {"$ref": "#/properties/a"}, "b": {"anyOf": [{"$ref": "#/$defs/b"}]}}, "$defs": {"b": 5}},
        {"properties": {"a": {"type": "string", "minLength": -1, "maxLength": True}}},
    ],
)
def test_invalid_schemas_of_tools_that_are_not_strict_are_ignored(
    schema: dict[str, Any], choice: ToolMode, format_name: str, answer: str
) -> None:
    constraints = builder(format_name).build(asked(tool(schema), choice=choice))
    assert constraints.grammar is not None
    reader = builder(format_name).tool_call_reader(Tools(definitions=(tool(schema),), choice=choice, parallel=True))
    _, calls = reader.read(answer, is_last=True)
    assert len(calls) == 1


def test_response_format_applies_to_completions_without_tool_calls() -> None:
    schema = Constraint(grammar=Grammar(kind=GrammarKind.JSON_SCHEMA, text='{"enum": ["the form"]}'), field="form")
    constraints = builder().build(asked(tool(ENFORCED), constraint=schema))
    assert constraints.grammar is not None
    assert "the form" in constraints.grammar.text
    assert '"integer"' in constraints.grammar.text
    called = builder().build(asked(tool(ENFORCED), choice=ToolMode.REQUIRED, constraint=schema))
    assert called.grammar is not None
    assert "the form" not in called.grammar.text
    hopeless = Constraint(grammar=Grammar(kind=GrammarKind.JSON_SCHEMA, text='{"$ref": "#"}'), field="form")
    assert refusal(asked(tool(ENFORCED), constraint=hopeless)).field == "form"
    assert refusal(asked(tool(ENFORCED), constraint=schema), "llama").reason == "conflicting_values"


@pytest.mark.parametrize("choice", [ToolMode.AUTO, ToolMode.REQUIRED])
@pytest.mark.parametrize("format_name", FORMATS)
def test_grammars_have_the_allowed_tools_alone(format_name: str, choice: ToolMode) -> None:
    other = replace(tool(ENFORCED), name="other")
    request = asked(tool(ENFORCED), other, choice=choice)
    assert request.tools is not None
    both = builder(format_name).build(request).grammar
    allowed = replace(request, tools=replace(request.tools, allowed=frozenset({"other"})))
    one = builder(format_name).build(allowed).grammar
    assert both is not None
    assert one is not None
    assert [name in both.text for name in ("look", "other")] == [True, True]
    assert [name in one.text for name in ("look", "other")] == [False, True]


def test_refuses_tools_for_a_model_without_tool_support() -> None:
    assert refusal(asked(tool(ENFORCED)), None).field == "tools"
