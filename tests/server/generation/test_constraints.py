"""Tests for output constraints, and for refusals of what cannot be enforced."""

import json
from dataclasses import replace
from typing import Any

import pytest

from glimpse.engine.checkpoint import DEFAULT_MODEL
from glimpse.engine.sampling_params import Grammar, GrammarKind, SamplingParams
from glimpse.engine.text.conversation import NamedTool, ToolChoice, ToolDefinition, ToolMode
from glimpse.engine.text.grammar_check import GrammarChecker
from glimpse.engine.text.tokenizer import load_tokenizer
from glimpse.engine.text.tools import FORMATS
from glimpse.server.generation.constraints import UNCONSTRAINED, ConstraintBuilder
from glimpse.server.request import Constraint, GenerationRequest, Tools
from glimpse.server.rpc.errors import InvalidRequest

TOKENIZER = load_tokenizer(DEFAULT_MODEL)
CHECKER = GrammarChecker(TOKENIZER)
ENFORCED = {"properties": {"at": {"type": "integer"}}, "required": ["at"]}
NOT_ENFORCED = {"properties": {"at": {"type": "string", "format": "no-such-format"}}}


def tool(parameters: dict[str, Any], *, strict: bool = False) -> ToolDefinition:
    return ToolDefinition(name="look", description=None, parameters=json.dumps(parameters), strict=strict)


def asked(
    *tools: ToolDefinition, choice: ToolChoice = ToolMode.AUTO, constraint: Constraint | None = None
) -> GenerationRequest:
    return GenerationRequest(
        prompts=(),
        sampling=SamplingParams(),
        num_completions=1,
        constraint=constraint,
        tools=Tools(definitions=tools, choice=choice, parallel=True) if tools else None,
        priority=0,
        cache_salt="",
    )


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


def test_free_choice_enforces_what_it_can_and_refuses_nothing() -> None:
    mixed = builder().build(asked(tool(ENFORCED), replace(tool(NOT_ENFORCED), name="other"))).grammar
    assert mixed is not None
    assert '"integer"' in mixed.text
    assert "no-such-format" not in mixed.text
    many = [replace(tool({"description": "x" * 4000} | ENFORCED), name=f"look_{index}") for index in range(40)]
    large = builder().build(asked(*many)).grammar
    assert large is not None
    assert "look_39" in large.text
    assert '"integer"' not in large.text
    too_many = [replace(tool(ENFORCED), name=f"look_{index}") for index in range(300)]
    assert builder().build(asked(*too_many)).grammar is None


@pytest.mark.parametrize("choice", [ToolMode.REQUIRED, NamedTool(name="look")])
@pytest.mark.parametrize("format_name", FORMATS)
def test_required_tools_are_constrained_by_a_grammar(format_name: str, choice: ToolChoice) -> None:
    constraints = builder(format_name).build(asked(tool(ENFORCED), choice=choice))
    assert constraints.grammar is not None
    assert '"integer"' in constraints.grammar.text


def test_ignores_unenforceable_schemas_of_tools_that_are_not_strict() -> None:
    constraints = builder().build(asked(tool(NOT_ENFORCED), choice=ToolMode.REQUIRED))
    assert constraints.grammar is not None
    assert "no-such-format" not in constraints.grammar.text


def test_refuses_unenforceable_constraints_by_field() -> None:
    strict = refusal(asked(tool(ENFORCED), tool(NOT_ENFORCED, strict=True)))
    assert (strict.field, strict.reason) == ("tools[1].function.parameters", "unsupported")
    pattern = Constraint(grammar=Grammar(kind=GrammarKind.REGEX, text="("), field="structured_outputs.regex")
    assert refusal(asked(constraint=pattern)).field == "structured_outputs.regex"


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"at": {"type": "string", "pattern": "a"}}, "'pattern' cannot be enforced"),
        ({"at": {"type": ["string", "null"], "enum": ["a", None]}}, "'enum' cannot be enforced"),
        ({"a\nt": {"type": "integer"}}, "expected 'properties', with names without"),
        (None, "expected 'properties'"),
    ],
)
def test_strict_tools_must_be_enforceable_in_the_model_s_format(properties: Any, reason: str) -> None:
    schema = {"type": "object"} | ({} if properties is None else {"properties": properties})
    refused = refusal(asked(tool(schema, strict=True)), "qwen3_coder")
    assert (refused.field, refused.reason) == ("tools[0].function.parameters", "unsupported")
    assert reason in str(refused)
    assert builder("qwen3_coder").build(asked(tool(schema), choice=ToolMode.REQUIRED)).grammar is not None
    assert builder("hermes").build(asked(tool(schema, strict=True))).grammar is not None


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
def test_invalid_schemas_of_tools_that_are_not_strict_are_ignored(schema: dict[str, Any], choice: ToolMode) -> None:
    constraints = builder("qwen3_coder").build(asked(tool(schema), choice=choice))
    assert constraints.grammar is not None
    reader = builder("qwen3_coder").tool_call_reader(Tools(definitions=(tool(schema),), choice=choice, parallel=True))
    _, calls = reader.read("<function=look>\n<parameter=a>\n1\n</parameter>\n</function>", is_last=True)
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
    hopeless = Constraint(grammar=Grammar(kind=GrammarKind.JSON_SCHEMA, text='{"not": {}}'), field="form")
    assert refusal(asked(tool(ENFORCED), constraint=hopeless)).field == "form"
    assert refusal(asked(tool(ENFORCED), constraint=schema), "llama").reason == "conflicting_values"


def test_refuses_tools_for_a_model_without_tool_support() -> None:
    assert refusal(asked(tool(ENFORCED)), None).field == "tools"
