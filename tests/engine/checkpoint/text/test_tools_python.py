"""Tests for tool calls as Python writes them: they are read as JSON, and grammars allow what the parser reads."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glimpse.engine.checkpoint.text.conversation import ToolDefinition, ToolMode
from glimpse.engine.checkpoint.text.tools import (
    FORMATS,
    TextEvent,
    ToolCallArguments,
    ToolCallStarted,
    ToolEvent,
    new_tool_parser,
    tool_grammar,
    unenforced_in_calls,
)
from tests.engine.checkpoint.text.test_tools_grammar import allows
from tests.engine.checkpoint.text.test_tools_parser import JSON_VALUES, call, joined
from tests.engine.checkpoint.text.test_tools_parser import read as read_events

LFM2 = FORMATS["lfm2"]
LOOK = ToolDefinition(name="look", description=None, parameters='{"type": "object"}', strict=False)


def read(*pieces: str) -> list[ToolEvent]:
    return joined(read_events(LFM2, *pieces, tools=[LOOK]))


def written(calls: str) -> str:
    return f"<|tool_call_start|>[{calls}]<|tool_call_end|>"


READINGS: list[tuple[str, list[ToolEvent]]] = [
    (written("look()"), call(0, "look", "{}")),
    (
        "I look." + written('look(at="a", n=3), look(b=[1, -1.5], )') + "Done.",
        [
            TextEvent("I look."),
            *call(0, "look", '{"at": "a", "n": 3}'),
            *call(1, "look", '{"b": [1, -1.5]}'),
            TextEvent("Done."),
        ],
    ),
    (
        written("look(a=True, b=None, c=false, d=red)"),
        call(0, "look", '{"a": true, "b": null, "c": false, "d": "red"}'),
    ),
    (
        written("""look(a={'b': (1, {"c": []})}, d={e: "f"})"""),
        call(0, "look", '{"a": {"b": [1, {"c": []}]}, "d": {"e": "f"}}'),
    ),
    (
        written(r"""look(a='it\'s "so"', b="\x41\n\d\u00e4")"""),
        call(0, "look", r'{"a": "it\'s \"so\"", "b": "\u0041\n\\d\u00e4"}'.replace(r"\'", "'")),
    ),
    (written('look(a="He said "hi" to ,", b=1)'), call(0, "look", r'{"a": "He said \"hi\" to ,", "b": 1}')),
    (written('{"name": "look", "arguments": {"a": 1}}'), call(0, "look", '{"a": 1}')),
    ("<|tool_call_start|>look(a=1)<|tool_call_end|>", call(0, "look", '{"a": 1}')),
    # not a call
    (written("rm()"), [TextEvent("[rm()]")]),
    ("<|tool_call_start|>[1, 2]\nSo", [TextEvent("[1, 2]\nSo")]),
    ("<|tool_call_start|>[lo", []),
    # once reported as a call, it stays one
    ('<|tool_call_start|>[look(a="b', call(0, "look", '{"a": "b')),
    ("<|tool_call_start|>[look(a=1<|tool_call_end|> So", [*call(0, "look", '{"a": '), TextEvent(" So")]),
]


@pytest.mark.parametrize(("answer", "events"), READINGS)
def test_parses_calls_however_they_are_split(answer: str, events: list[ToolEvent]) -> None:
    assert read(answer) == read(*answer) == events
    assert all(read(answer[:place], answer[place:]) == events for place in range(len(answer)))


def test_strings_stream_while_they_are_generated() -> None:
    parser = new_tool_parser(LFM2, tools=[LOOK])
    assert parser.feed("<|tool_call_start|>[look(") == [ToolCallStarted(0, "look"), ToolCallArguments(0, "{")]
    assert parser.feed("a='The ") == [ToolCallArguments(0, '"a": "The ')]
    assert parser.feed("end' ") == [ToolCallArguments(0, "end")]
    assert parser.feed("of") == [ToolCallArguments(0, "' of")]


@given(value=JSON_VALUES)
def test_values_are_read_as_json_and_as_python_write_them(value: object) -> None:
    texts = (json.dumps(value), json.dumps(value, ensure_ascii=False), repr(value))
    for text in texts if "\\U" not in repr(value) else texts[:2]:
        _, arguments = read(written(f"look(a={text})"))
        assert isinstance(arguments, ToolCallArguments)
        assert json.loads(arguments.text) == {"a": value}


@given(member=st.sampled_from(["minProperties", "allOf", "patternProperties"]), is_listed=st.booleans())
def test_keywords_of_several_parameters_are_not_enforced(member: str, is_listed: bool) -> None:
    schema = {"type": "object", member: 1} | (
        {"properties": {"a": {"type": "string", "pattern": "a"}}} if is_listed else {}
    )
    tool = ToolDefinition(name="look", description=None, parameters=json.dumps(schema), strict=False)
    assert unenforced_in_calls(LFM2, tool) == (f"#/{member}",)


@pytest.mark.parametrize(
    ("calls", "is_allowed"),
    [
        ('look(b="x")', True),
        ('look(a=1, b="x", c=[2])', True),
        ('look(a=1, b="x"), look(b="y", c=[])', True),
        ("look(a=1)", False),
        ('look(b="x", a=1)', False),
        ('look(a="1", b="x")', False),
    ],
)
def test_grammars_have_required_and_optional_parameters_in_their_order(calls: str, is_allowed: bool) -> None:
    properties = {"a": {"type": "integer"}, "b": {"type": "string"}, "c": {"type": "array"}}
    schema = json.dumps({"type": "object", "properties": properties, "required": ["b"]})
    tool = ToolDefinition(name="look", description=None, parameters=schema, strict=False)
    made = tool_grammar(LFM2, [tool], ToolMode.REQUIRED, parallel=True)
    assert made is not None
    assert allows(made, written(calls)) == is_allowed
