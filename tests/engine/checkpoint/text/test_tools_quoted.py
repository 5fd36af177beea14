"""Tests for tool calls with quotes of their own: they are read as JSON, and grammars allow what the parser reads."""

import json
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
    new_tool_parser,
    tool_grammar,
    unenforced_in_calls,
)
from tests.engine.checkpoint.text.test_tools_grammar import SPECIAL, TAG_IDS, allows, matcher, random_text, text_tokens
from tests.engine.checkpoint.text.test_tools_parser import CUTS, JSON_VALUES, call, cut, joined, tool
from tests.engine.checkpoint.text.test_tools_parser import read as read_events

GEMMA4 = FORMATS["gemma4"]
QUOTE = GEMMA4.quote


TOOLS = [tool("look", {"type": "object"}), tool("files.read:a/b", {"type": "object"})]


def read(*pieces: str) -> list[ToolEvent]:
    return joined(read_events(GEMMA4, *pieces, tools=TOOLS))


def quoted(value: Any) -> str:
    """Writes a value as the published template does."""
    match value:
        case str():
            return f"{QUOTE}{value}{QUOTE}"
        case bool():
            return str(value).lower()
        case dict():
            return f"{{{','.join(f'{name}:{quoted(each)}' for name, each in value.items())}}}"
        case list():
            return f"[{','.join(map(quoted, value))}]"
        case _:
            return str(value)


def written(name: str, arguments: dict[str, Any]) -> str:
    return f"<|tool_call>call:{name}{quoted(arguments)}<tool_call|>"


READINGS: list[tuple[str, list[ToolEvent]]] = [
    (written("look", {}), call(0, "look", "{}")),
    (
        "Let me see.\n" + written("look", {"at": 'a <b>\n"ä"', "n": 3}) + written("files.read:a/b", {}),
        [
            TextEvent("Let me see."),
            *call(0, "look", '{"at": "a <b>\\n\\"ä\\"", "n": 3}'),
            *call(1, "files.read:a/b", "{}"),
        ],
    ),
    (
        written("look", {"a": [1, {"b": True, "c": None}, -1.5e-3], "d": {"e": {}}}),
        call(0, "look", '{"a": [1, {"b": true, "c": null}, -0.0015], "d": {"e": {}}}'),
    ),
    (f"{written('look', {})} and then?", [*call(0, "look", "{}"), TextEvent(" and then?")]),
    ("<|tool_call> call:look { a : 1 , b : [ ] } <tool_call|>", call(0, "look", '{"a": 1, "b": []}')),
    # as models write them now and then
    ('<|tool_call>call:look{"a":"b\\"c",<|"|>d e<|"|>:Rome}', call(0, "look", '{"a": "b\\"c", "d e": "Rome"}')),
    # not a call
    ("<|tool_call>call:rm{}<tool_call|>", [TextEvent("call:rm{}")]),
    ("<|tool_call>look()", [TextEvent("look()")]),
    ('a < b, <|"|> <|tool_', [TextEvent("a < b,  <|tool_")]),
    ("<|tool_call>call:lo", []),
    # once reported as a call, it stays one
    ('<|tool_call>call:look{a:<|"|>b<|"', call(0, "look", '{"a": "b')),
    ("<|tool_call>call:look{a:1<tool_call|> So", [*call(0, "look", '{"a": '), TextEvent(" So")]),
    ("<|tool_call>call:look{a:[1}<tool_call|>", [*call(0, "look", '{"a": [1'), TextEvent("}")]),
]


@pytest.mark.parametrize(("answer", "events"), READINGS)
def test_parses_calls_however_they_are_split(answer: str, events: list[ToolEvent]) -> None:
    assert read(answer) == read(*answer) == events
    assert all(read(answer[:place], answer[place:]) == events for place in range(len(answer)))


@pytest.mark.parametrize(
    ("text", "value"),
    [("5", 5), ("-1.5", -1.5), ("True", True), ("false", False), ("None", None), ("null", None), ("007", "007")],
)
def test_values_without_quotes_are_json_or_text(text: str, value: object) -> None:
    _, arguments = read(f"<|tool_call>call:look{{a:{text}}}<tool_call|>")
    assert isinstance(arguments, ToolCallArguments)
    assert json.loads(arguments.text) == {"a": value}


def test_strings_stream_while_they_are_generated() -> None:
    parser = new_tool_parser(GEMMA4, tools=TOOLS)
    assert parser.feed("<|tool_call>call:look{a") == [ToolCallStarted(0, "look"), ToolCallArguments(0, "{")]
    assert parser.feed(f":{QUOTE}The ") == [ToolCallArguments(0, '"a": "The ')]
    assert parser.feed("end\n<|") == [ToolCallArguments(0, "end\\n")]
    assert parser.feed("of<") == [ToolCallArguments(0, "<|of")]
    assert parser.feed('|"|>}') == [ToolCallArguments(0, '"}')]


def test_nesting_is_not_bounded_by_the_stack() -> None:
    _, arguments = read(f"<|tool_call>call:look{{a:{'[' * 5000}")
    assert arguments == ToolCallArguments(0, '{"a": ' + "[" * 5000)


NAMES = st.from_regex(r"[a-zA-Z_ä][a-zA-Z_ä. -]{0,5}[a-z]", fullmatch=True)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6)
    | st.text('<|">a{}[],:\n', max_size=9).filter(lambda text: QUOTE not in text and not text.endswith("<")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


@given(calls=st.lists(st.dictionaries(NAMES, VALUES, max_size=3), min_size=1, max_size=3), places=CUTS)
@example(calls=[{"a": '<|"|'}], places=[])
def test_reads_back_the_arguments_that_were_written(calls: list[dict[str, Any]], places: list[int]) -> None:
    events = read(*cut("".join(written("look", each) for each in calls), places))
    assert not any(isinstance(event, TextEvent) for event in events)
    assert [json.loads(event.text) for event in events if isinstance(event, ToolCallArguments)] == calls


STRICT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "minLength": 1, "maxLength": 5},
        "Days": {"type": "array", "items": {"$ref": "#/$defs/day"}, "minItems": 1, "maxItems": 2},
        "name": {"type": ["string", "null"]},
        "unit": {"enum": ["C", 5, None, ["x", True]]},
        "size": {"anyOf": [{"type": "integer", "maximum": 9}, {"const": "big"}]},
        "at": {
            "type": "object",
            "properties": {"x y": {"type": "number"}, "tree": {"$ref": "#/$defs/tree"}},
            "required": ["x y"],
            "additionalProperties": False,
        },
        "marks": {"type": "object", "additionalProperties": {"type": "boolean"}},
    },
    "required": ["text", "unit"],
    "additionalProperties": False,
    "$defs": {
        "day": {"type": "integer", "minimum": 0},
        "tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 1},
    },
}


@pytest.mark.parametrize("is_special", [False, True])
@pytest.mark.parametrize("choice", [ToolMode.REQUIRED, ToolMode.AUTO])
def test_grammar_allows_only_calls_that_match_the_schema(choice: ToolMode, is_special: bool) -> None:
    tag_ids = {tag: TAG_IDS[tag] for tag in GEMMA4.tags} if is_special else {}
    offered = [tool("look", STRICT, strict=True)]
    made = tool_grammar(GEMMA4, offered, choice, parallel=True, tag_ids=tag_ids)
    assert made is not None
    assert unenforced_in_calls(GEMMA4, offered[0]) == ()
    begun = text_tokens(GEMMA4.opening, tag_ids)
    tokenizer = (SPECIAL,) if is_special else ()
    answers = [answer for seed in range(40) if (answer := random_text(made, seed, *tokenizer, begun=begun)) is not None]
    assert len(answers) > 5
    for answer in answers:
        events = joined(read_events(GEMMA4, answer, tools=offered))
        arguments = [event.text for event in events if isinstance(event, ToolCallArguments)]
        assert arguments
        for text in arguments:
            jsonschema.validate(json.loads(text), STRICT)


GOOD = {"text": "one", "unit": "C"}


@pytest.mark.parametrize(
    ("answer", "is_allowed"),
    [
        (written("look", GOOD), True),
        (f"I look.\n{written('look', GOOD)}{written('look', GOOD)}", True),
        ("It is <b>warm</b>.", True),
        (written("look", {"Days": [1], "name": "a", "size": 5, "text": "o\nne", "unit": 5}), True),
        ('<|tool_call>call:look{at:{tree:[[]],x y:5},text:<|"|>a<|"|>,unit:[<|"|>x<|"|>,true]}<tool_call|>', True),
        (written("look", {"text": "three more", "unit": "C"}), False),
        (written("look", {"text": "", "unit": "C"}), False),
        (written("look", {"text": "one", "unit": "K"}), False),
        (written("look", {"text": "one"}), False),
        (written("look", {"unit": "C", "text": "one"}), False),
        (written("look", {"Days": [-1], **GOOD}), False),
        (written("look", {"Days": [1, 2, 3], **GOOD}), False),
        (written("look", {"size": 10, **GOOD}), False),
        (written("look", {"marks": {"a": True, "b": False}, **GOOD}), True),
        (written("look", {"marks": {"a": 1}, **GOOD}), False),
        (written("look", {**GOOD, "zone": "a"}), False),
        (written("other", GOOD), False),
        ("I look. <|tool_call>", False),
    ],
)
def test_auto_choice_allows_text_or_valid_calls(answer: str, is_allowed: bool) -> None:
    made = tool_grammar(GEMMA4, [tool("look", STRICT, strict=True)], ToolMode.AUTO, parallel=True)
    assert made is not None
    assert allows(made, answer) == is_allowed


@given(arguments=st.dictionaries(st.sampled_from(["a", "b"]), JSON_VALUES.map(lambda each: [each, {"c": each}])))
@example(arguments={"a": [{}, []]})
def test_tools_without_listed_parameters_may_have_any(arguments: dict[str, Any]) -> None:
    text = written("look", arguments).replace("None", "null")
    is_writable = not any(each in text for each in ("{:", "e+")) and _has_plain_names(arguments)
    made = tool_grammar(GEMMA4, TOOLS, ToolMode.REQUIRED, parallel=True)
    assert made is not None
    assert not is_writable or allows(made, text)


def _has_plain_names(value: Any) -> bool:
    if isinstance(value, dict):
        return all(name.isidentifier() and _has_plain_names(each) for name, each in value.items())
    return not isinstance(value, list) or all(map(_has_plain_names, value))


def test_a_string_does_not_contain_its_quote() -> None:
    """Also where the quote is a special token: other tokens may spell it."""
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    tag_ids = {tag: TAG_IDS[tag] for tag in GEMMA4.tags}
    made = tool_grammar(GEMMA4, [tool("look", schema)], ToolMode.REQUIRED, parallel=False, tag_ids=tag_ids)
    assert made is not None
    compiled = matcher(made, SPECIAL)
    begun = text_tokens(f"<|tool_call>call:look{{a:{QUOTE}b", tag_ids)
    assert compiled.try_consume_tokens(begun) == len(begun)
    assert compiled.try_consume_tokens([*QUOTE.encode()]) < len(QUOTE)
