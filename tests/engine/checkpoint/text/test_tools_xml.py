"""Tests for tool calls in XML: text becomes JSON of the schema's types, and grammars allow what the parser reads."""

import json
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from glimpse.engine.checkpoint.text.conversation import ToolMode
from glimpse.engine.checkpoint.text.tools import (
    FORMATS,
    TextEvent,
    ToolCallArguments,
    ToolCallStarted,
    ToolEvent,
    ToolFormat,
    new_tool_parser,
)
from glimpse.engine.checkpoint.text.tools import tool_grammar as make_grammar
from tests.engine.checkpoint.text.test_tools_grammar import allows, random_text
from tests.engine.checkpoint.text.test_tools_parser import CUTS, call, cut, joined, tool
from tests.engine.checkpoint.text.test_tools_parser import read as read_events

CODER, GLM = FORMATS["qwen3_coder"], FORMATS["glm45"]
BOTH = pytest.mark.parametrize("form", [CODER, GLM], ids=lambda form: form.name)
DAY = {"type": "integer", "minimum": 0}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "is_on": {"type": "boolean"},
        "days": {"type": "array", "items": {"$ref": "#/$defs/day"}},
        "options": {"type": "object"},
        "name": {"type": ["string", "null"]},
        "size": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "unit": {"enum": ["C", "F"]},
        "day": {"$ref": "#/$defs/day"},
        "any": {},
    },
    "required": ["text"],
    "additionalProperties": False,
    "$defs": {"day": DAY},
}


TOOLS = [tool("look", SCHEMA), tool("now", {"type": "object"})]


def read(*pieces: str, form: ToolFormat = CODER) -> list[ToolEvent]:
    return joined(read_events(form, *pieces, tools=TOOLS))


def written(name: str, *values: tuple[str, str], form: ToolFormat = CODER) -> str:
    """Writes a call as the model does."""
    if form is GLM:
        parameters = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in values)
        return f"<tool_call>{name}\n{parameters}</tool_call>"
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values)
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


MARKS = 'a <b>\n"ä"'
READINGS: list[tuple[str, list[ToolEvent]]] = [
    (written("now"), call(0, "now", "{}")),
    (
        "Let me see.\n" + written("look", ("text", MARKS), ("count", "3")) + f"\n{written('now')}\n",
        [
            TextEvent("Let me see."),
            *call(0, "look", f'{{"text": {json.dumps(MARKS, ensure_ascii=False)}, "count": 3}}'),
            *call(1, "now", "{}"),
        ],
    ),
    ("<tool_call><function=now></function></tool_call>", call(0, "now", "{}")),
    ("<function=now>\n</function>\n</tool_call>", call(0, "now", "{}")),
    ("<function=look><parameter=text>a</parameter></function>", call(0, "look", '{"text": "a"}')),
    (f"{written('now')} and then?", [*call(0, "now", "{}"), TextEvent(" and then?")]),
    (written("now", ("k", "v")), call(0, "now", '{"k": "v"}')),
    # not a call
    ("<function=rm>\n</function>", [TextEvent("<function=rm>\n</function>")]),
    ("<tool_call>\nlook()", [TextEvent("\nlook()")]),
    ('<tool_call>{"name": "now"}', [TextEvent('{"name": "now"}')]),
    ("a < b, <function", [TextEvent("a < b, <function")]),
    # once reported as a call, it stays one
    ("<function=look>\n<parameter=text>\na\n</param", call(0, "look", '{"text": "a')),
    ("<function=now>\nSo </function>", [*call(0, "now", "{}"), TextEvent("\nSo </function>")]),
    (
        "<function=look><parameter=text>a</parameter> b",
        [*call(0, "look", '{"text": "a"}'), TextEvent(" b")],
    ),
]


ARGUMENT = "<arg_key>text</arg_key>\n<arg_value>a</arg_value>"
GLM_READINGS: list[tuple[str, list[ToolEvent]]] = [
    (written("now", form=GLM), call(0, "now", "{}")),
    (
        "Let me see.\n"
        + written("look", ("text", MARKS), ("count", "3"), form=GLM)
        + f"\n{written('now', form=GLM)}\n",
        [
            TextEvent("Let me see."),
            *call(0, "look", f'{{"text": {json.dumps(MARKS, ensure_ascii=False)}, "count": 3}}'),
            *call(1, "now", "{}"),
        ],
    ),
    # as GLM-4.7 writes them
    ("<tool_call>now</tool_call>", call(0, "now", "{}")),
    (f"<tool_call>look{ARGUMENT.replace(chr(10), '')}</tool_call>", call(0, "look", '{"text": "a"}')),
    (f"{written('now', form=GLM)} and then?", [*call(0, "now", "{}"), TextEvent(" and then?")]),
    (written("now", ("k", "v"), form=GLM), call(0, "now", '{"k": "v"}')),
    (written("look", ("text", "\na\n"), form=GLM), call(0, "look", '{"text": "\\na\\n"}')),
    # not a call
    ("<tool_call>rm\n</tool_call>", [TextEvent("rm\n")]),
    ("<tool_call>nowhere\n</tool_call>", [TextEvent("nowhere\n")]),
    ('<tool_call>{"name": "now"}', [TextEvent('{"name": "now"}')]),
    ("a <b, <tool_cal", [TextEvent("a <b, <tool_cal")]),
    ("I look. <tool_call>now", [TextEvent("I look.")]),
    # once reported as a call, it stays one
    ("<tool_call>look\n<arg_key>text</arg_key><arg_value>a</arg_v", call(0, "look", '{"text": "a')),
    (f"<tool_call>look\n{ARGUMENT} b", [*call(0, "look", '{"text": "a"}'), TextEvent(" b")]),
]


@pytest.mark.parametrize(
    ("form", "answer", "events"),
    [*((CODER, *each) for each in READINGS), *((GLM, *each) for each in GLM_READINGS)],
)
def test_parses_calls_however_they_are_split(form: ToolFormat, answer: str, events: list[ToolEvent]) -> None:
    assert read(answer, form=form) == read(*answer, form=form) == events
    assert all(read(answer[:place], answer[place:], form=form) == events for place in range(len(answer)))


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("text", "5", "5"),
        ("text", "", ""),
        ("text", "\n a\n\n", "\n a\n\n"),
        ("text", "</param", "</param"),
        ("count", "5", 5),
        ("count", "five", "five"),
        ("ratio", "5", 5),
        ("ratio", "NaN", "NaN"),
        ("is_on", "True", True),
        ("is_on", "false", False),
        ("days", " [1, 2]", [1, 2]),
        ("options", '{"a": "b"}', {"a": "b"}),
        ("options", "{'a': 1}", "{'a': 1}"),
        ("name", "null", None),
        ("name", "None", None),
        ("name", "5", "5"),
        ("size", "5", 5),
        ("size", "big", "big"),
        ("unit", "C", "C"),
        ("day", "5", 5),
        ("any", "5", "5"),
        ("unknown", "5", "5"),
    ],
)
def test_values_have_the_type_of_the_schema(name: str, text: str, value: object) -> None:
    _, arguments = read(written("look", (name, text)))
    assert isinstance(arguments, ToolCallArguments)
    assert json.loads(arguments.text) == {name: value}


def test_strings_stream_while_they_are_generated() -> None:
    parser = new_tool_parser(CODER, tools=TOOLS)
    assert parser.feed("<tool_call>\n<function=look>\n<para") == [
        ToolCallStarted(0, "look"),
        ToolCallArguments(0, "{"),
    ]
    assert parser.feed("meter=text>\nThe ") == [ToolCallArguments(0, '"text": "The ')]
    assert parser.feed("end\n") == [ToolCallArguments(0, "end")]
    assert parser.feed("of</para") == [ToolCallArguments(0, "\\nof")]
    assert parser.feed("meter>\n") == [ToolCallArguments(0, '"')]
    assert parser.feed("</function>\n</tool_call>") == [ToolCallArguments(0, "}")]


TEXTS = st.text(max_size=8) | st.text("a<>/\n parmet", max_size=12)
VALUES = st.fixed_dictionaries(
    {"text": TEXTS},
    optional={
        "count": st.integers(),
        "is_on": st.booleans(),
        "days": st.lists(st.integers(0), max_size=3),
        "options": st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=2),
        "unit": st.sampled_from(["C", "F"]),
    },
)


@BOTH
@given(calls=st.lists(VALUES, min_size=1, max_size=3), places=CUTS)
@example(calls=[{"text": "</parameter"}, {"text": "</arg_value"}], places=[])
def test_reads_back_the_arguments_that_were_written(
    form: ToolFormat, calls: list[dict[str, Any]], places: list[int]
) -> None:
    values = [
        [(key, value if isinstance(value, str) else json.dumps(value)) for key, value in each.items()] for each in calls
    ]
    texts = [written("look", *each, form=form) for each in values]
    events = read(*cut("\n".join(texts), places), form=form)
    found = [json.loads(event.text) for event in events if isinstance(event, ToolCallArguments)]
    assert found == calls
    assert not any(isinstance(event, TextEvent) for event in events)


STRICT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "minLength": 1, "maxLength": 5},
        "days": {"type": "array", "items": {"$ref": "#/$defs/day"}, "maxItems": 2},
        "name": {"type": ["string", "null"]},
        "unit": {"enum": ["C", "F"]},
    },
    "required": ["text", "unit"],
    "additionalProperties": False,
    "$defs": {"day": DAY},
}


@BOTH
@pytest.mark.parametrize("choice", [ToolMode.REQUIRED, ToolMode.AUTO])
def test_grammar_allows_only_calls_that_match_the_schema(choice: ToolMode, form: ToolFormat) -> None:
    made = make_grammar(form, [tool("look", STRICT, strict=True)], choice, parallel=True)
    assert made is not None
    for seed in range(20):
        answer = random_text(made, seed, begun=b"<tool_call>")
        if answer is not None:
            events = joined(read_events(form, answer, tools=[tool("look", STRICT)]))
            arguments = [event.text for event in events if isinstance(event, ToolCallArguments)]
            assert arguments
            for text in arguments:
                jsonschema.validate(json.loads(text), STRICT)


GOOD = (("text", "one"), ("unit", "C"))
VARIED = (("text", "o\nne"), ("days", "[1]"), ("name", "null"), ("unit", "F"))


@BOTH
@pytest.mark.parametrize(
    ("values", "is_allowed"),
    [
        (GOOD, True),
        (VARIED, True),
        ((("text", "three more"), ("unit", "C")), False),
        ((("text", ""), ("unit", "C")), False),
        ((("text", "one"), ("unit", "K")), False),
        ((("text", "one"),), False),
        ((("text", "one"), ("days", "[-1]"), ("unit", "C")), False),
        ((*GOOD, ("more", "a")), False),
    ],
)
def test_auto_choice_allows_valid_calls(form: ToolFormat, values: Sequence[tuple[str, str]], is_allowed: bool) -> None:
    made = make_grammar(form, [tool("look", STRICT, strict=True)], ToolMode.AUTO, parallel=True)
    assert made is not None
    assert allows(made, written("look", *values, form=form)) == is_allowed


@BOTH
def test_auto_choice_allows_text_and_several_calls_of_the_tools(form: ToolFormat) -> None:
    made = make_grammar(form, [tool("look", STRICT, strict=True)], ToolMode.AUTO, parallel=True)
    assert made is not None
    good = written("look", *GOOD, form=form)
    assert allows(made, f"I look.\n{good}\n{good}")
    assert allows(made, "It is <b>warm</b>.")
    assert not allows(made, written("other", *GOOD, form=form))
    assert allows(made, "I look. <function=look>") == (form is GLM)


@BOTH
def test_tools_without_listed_parameters_may_have_any(form: ToolFormat) -> None:
    made = make_grammar(form, [tool("now", {"type": "object"})], ToolMode.REQUIRED, parallel=True)
    assert made is not None
    assert allows(made, written("now", form=form))
    assert allows(made, written("now", ("a", "b\nc"), ("d", ""), form=form))


def test_names_and_values_may_have_any_letters() -> None:
    schema = {"type": "object", "properties": {'größe "x"': {"enum": ["ä\\", '"🦉"']}}, "required": ['größe "x"']}
    made = make_grammar(CODER, [tool("now", schema, strict=True)], ToolMode.REQUIRED, parallel=True)
    assert made is not None
    assert allows(made, written("now", ('größe "x"', '"🦉"')))
    assert not allows(made, written("now", ('größe "x"', "🦉")))
