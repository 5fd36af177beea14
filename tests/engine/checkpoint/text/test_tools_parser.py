"""Tests for the tool call parser: it finds calls however the text is split; anything else stays text."""

import json
import re
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from glimpse.engine.checkpoint.text.conversation import ToolDefinition
from glimpse.engine.checkpoint.text.tools import (
    FORMATS,
    TextEvent,
    ToolCallArguments,
    ToolCallStarted,
    ToolEvent,
    ToolFormat,
    ToolParser,
    new_tool_parser,
)

HERMES, LLAMA, MISTRAL, PHI4, JSON = (FORMATS[name] for name in ("hermes", "llama", "mistral", "phi4_mini", "json"))
ARGS = FORMATS["mistral_args"]
TOOLS = [
    ToolDefinition(name=name, description=None, parameters='{"type": "object"}', strict=False)
    for name in ("look", "get_weather", "f-1")
]
EACH_FORMAT = pytest.mark.parametrize("tool_format", FORMATS.values(), ids=FORMATS.keys())
EACH_JSON_FORMAT = pytest.mark.parametrize(
    "tool_format", [each for each in FORMATS.values() if not each.xml and not each.quote], ids=lambda each: each.name
)


def tool(name: str, schema: object, *, strict: bool = False) -> ToolDefinition:
    return ToolDefinition(name=name, description=None, parameters=json.dumps(schema), strict=strict)


def read(tool_format: ToolFormat, *pieces: str, tools: Sequence[ToolDefinition] = TOOLS) -> list[ToolEvent]:
    parser = new_tool_parser(tool_format, tools=tools)
    return [*(event for piece in pieces for event in parser.feed(piece)), *parser.finish()]


def joined(events: list[ToolEvent]) -> list[ToolEvent]:
    """Merges consecutive events of one kind."""
    whole: list[ToolEvent] = []
    for event in events:
        match whole[-1] if whole else None, event:
            case TextEvent(before), TextEvent(text):
                whole[-1] = TextEvent(before + text)
            case ToolCallArguments(index, before), ToolCallArguments(same, text) if index == same:
                whole[-1] = ToolCallArguments(index, before + text)
            case _:
                whole.append(event)
    return whole


def call(index: int, name: str, arguments: str) -> list[ToolEvent]:
    return [ToolCallStarted(index, name), ToolCallArguments(index, arguments)]


LOOK = '{"at": "the \\"}\\" {[", "n": [1, {"x": null}]}'

READINGS: list[tuple[ToolFormat, str, list[ToolEvent]]] = [
    # format, completion, events
    (HERMES, "Just text.", [TextEvent("Just text.")]),
    (HERMES, " Just\ntext \n", [TextEvent(" Just\ntext \n")]),
    (HERMES, f'<tool_call>\n{{"name": "look", "arguments": {LOOK}}}\n</tool_call>', call(0, "look", LOOK)),
    (HERMES, '<tool_call>{"name":"look","arguments":{}}</tool_call>', call(0, "look", "{}")),
    (
        HERMES,
        'Let me see.\n<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>\n',
        [TextEvent("Let me see."), *call(0, "look", "{}")],
    ),
    (
        HERMES,
        '<tool_call>\n{"name": "look", "arguments": {"a": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "f-1", "arguments": {"b": 2}}\n</tool_call>',
        [*call(0, "look", '{"a": 1}'), *call(1, "f-1", '{"b": 2}')],
    ),
    (
        HERMES,
        '<tool_call>{"name": "look", "arguments": {}}</tool_call> and then?',
        [*call(0, "look", "{}"), TextEvent(" and then?")],
    ),
    (LLAMA, '{"name": "look", "parameters": {"a": 1}}', call(0, "look", '{"a": 1}')),
    (LLAMA, '<|python_tag|>{"name": "look", "parameters": {}}', call(0, "look", "{}")),
    (LLAMA, '{"type": "function", "name": "look", "parameters": {}}', call(0, "look", "{}")),
    (
        LLAMA,
        '\n{"name": "look", "parameters": {}}; {"name": "f-1", "parameters": {"b": 2}}\n',
        [*call(0, "look", "{}"), *call(1, "f-1", '{"b": 2}')],
    ),
    (LLAMA, "I see: {1}; [2]", [TextEvent("I see: {1}; [2]")]),
    (MISTRAL, '[TOOL_CALLS] [{"name": "look", "arguments": {"a": 1}}]', call(0, "look", '{"a": 1}')),
    (
        MISTRAL,
        'Well.[TOOL_CALLS][{"name": "look", "arguments": {}, "id": "abc"}, {"name": "f-1", "arguments": {"b": 2}}]',
        [TextEvent("Well."), *call(0, "look", "{}"), *call(1, "f-1", '{"b": 2}')],
    ),
    (MISTRAL, "[1] and [TOOL", [TextEvent("[1] and [TOOL")]),
    (ARGS, f"[TOOL_CALLS]look[ARGS]{LOOK}", call(0, "look", LOOK)),
    (
        ARGS,
        'Well.[TOOL_CALLS]look[ARGS]{"a": 1}[TOOL_CALLS] f-1 [CALL_ID]q7Zx01abc[ARGS] {}',
        [TextEvent("Well."), *call(0, "look", '{"a": 1}'), *call(1, "f-1", "{}")],
    ),
    (ARGS, "[TOOL_CALLS]look[ARGS]{} So.", [*call(0, "look", "{}"), TextEvent(" So.")]),
    (ARGS, "[TOOL_CALLS]loo[TOOL_CALLS]look[ARGS]{}", [TextEvent("loo"), *call(0, "look", "{}")]),
    (ARGS, "[TOOL_CALLS]looks[ARGS]{} [ARGS]", [TextEvent("looks{} ")]),
    (ARGS, "[TOOL_CALLS]look{}", [TextEvent("look{}")]),
    (ARGS, "[TOOL_CALLS]look[ARGS][1]", [TextEvent("look[1]")]),
    (ARGS, "[TOOL_CALLS]look[CALL_ID]x[ARGS", []),
    (ARGS, "[TOOL_CALLS]look[CALL_ID][CALL_ID]{}", [TextEvent("look{}")]),
    (
        PHI4,
        'Well.<|tool_call|>[{"name": "look", "arguments": {"a": [1]}}, {"name": "f-1", "arguments": {}}]<|/tool_call|>',
        [TextEvent("Well."), *call(0, "look", '{"a": [1]}'), *call(1, "f-1", "{}")],
    ),
    (PHI4, '<|tool_call|>[{"name": "look", "arguments": {}}]', call(0, "look", "{}")),
    (PHI4, "<|tool_call|>[]<|/tool_call|>", [TextEvent("[]")]),
    (JSON, '{"name": "look", "arguments": {"a": 1}}', call(0, "look", '{"a": 1}')),
    (
        JSON,
        '[{"name": "look", "arguments": {}}, {"name": "f-1", "arguments": {}}]',
        [*call(0, "look", "{}"), *call(1, "f-1", "{}")],
    ),
    (
        JSON,
        '{"name": "look", "arguments": {}}\n{"name": "f-1", "arguments": {}}',
        [*call(0, "look", "{}"), *call(1, "f-1", "{}")],
    ),
    (JSON, 'See {"name": "look", "arguments": {}}', [TextEvent('See {"name": "look", "arguments": {}}')]),
    (JSON, '{"name": "Ada", "born": 1815}', [TextEvent('{"name": "Ada", "born": 1815}')]),
]


@pytest.mark.parametrize(("tool_format", "answer", "events"), READINGS)
def test_parses_completions(tool_format: ToolFormat, answer: str, events: list[ToolEvent]) -> None:
    assert joined(read(tool_format, answer)) == events


@pytest.mark.parametrize(("tool_format", "answer", "events"), READINGS)
def test_parses_the_same_one_character_at_a_time(tool_format: ToolFormat, answer: str, events: list[ToolEvent]) -> None:
    assert joined(read(tool_format, *answer)) == events


HEAD = '<tool_call>\n{"name": "look", "arguments": '

MISTAKES: list[tuple[str, list[ToolEvent]]] = [
    # completion in Hermes's format, events
    ("<tool_call>look()</tool_call>", [TextEvent("look()")]),
    ('<tool_call>{"name": "rm", "arguments": {}}', [TextEvent('{"name": "rm", "arguments": {}}')]),
    ('<tool_call>{"name": 5, "arguments": {}}', [TextEvent('{"name": 5, "arguments": {}}')]),
    ('<tool_call>{"name": "\n", "arguments": {}}', [TextEvent('{"name": "\n", "arguments": {}}')]),
    ('<tool_call>{"name": "look"}</tool_call>', [TextEvent('{"name": "look"}')]),
    ('<tool_call>{"arguments": {}, "name": "look"}', [TextEvent('{"arguments": {}, "name": "look"}')]),
    (f'{HEAD}"{{}}"}}', [TextEvent('\n{"name": "look", "arguments": "{}"}')]),
    # cut off before it is a call
    ('<tool_call>{"na', []),
    ('Well.\n<tool_call>\n{"name": "look", "arg', [TextEvent("Well.")]),
    ("<tool_call>", []),
    ("<tool_ca", [TextEvent("<tool_ca")]),
    ('<tool_<tool_call>{"name": "look", "arguments": {}}', [TextEvent("<tool_"), *call(0, "look", "{}")]),
    ('<tool_call><tool_call>{"name": "look", "arguments": {}}', call(0, "look", "{}")),
    ("An end </tool_call> alone", [TextEvent("An end  alone")]),
    # once reported as a call, it stays one
    (f'{HEAD}{{"a": [1', call(0, "look", '{"a": [1')),
    (f"{HEAD}{{'a': True}}}}\n</tool_call>", call(0, "look", "{'a': True}")),
    (f'{HEAD}{{"a": "</tool_call>"}}}}\n</tool_call>', call(0, "look", '{"a": "</tool_call>"}')),
    (f"{HEAD}{{}}\n</tool_call>\nSo", [*call(0, "look", "{}"), TextEvent("\nSo")]),
    (f'{HEAD}{{"a": 1\n</tool_call>', call(0, "look", '{"a": 1\n')),
    (f"{HEAD}{{}}}}}}\n</tool_call>", [*call(0, "look", "{}"), TextEvent("}")]),
    (f"{HEAD}{{}}}}\n{HEAD}{{}}}}", [*call(0, "look", "{}"), *call(1, "look", "{}")]),
    (
        f'{HEAD}{{}}}}\n{{"name": "f-1", "arguments": {{}}}}\n</tool_call>',
        [*call(0, "look", "{}"), *call(1, "f-1", "{}")],
    ),
    (f'{HEAD}{{}}, "why": 1}}\n</tool_call>', [*call(0, "look", "{}"), TextEvent(', "why": 1}')]),
]


@pytest.mark.parametrize(("answer", "events"), MISTAKES)
def test_malformed_calls_are_text_unless_already_reported(answer: str, events: list[ToolEvent]) -> None:
    assert joined(read(HERMES, answer)) == events
    assert joined(read(HERMES, *answer)) == events


def test_reports_a_call_while_it_is_generated() -> None:
    parser = ToolParser(HERMES, tools=TOOLS)
    assert parser.feed('Yes. <tool_call>\n{"name": "lo') == [TextEvent("Yes.")]
    assert parser.feed('ok", "arguments": ') == []
    assert parser.feed('{"a": "b') == [ToolCallStarted(0, "look"), ToolCallArguments(0, '{"a": "b')]
    assert parser.feed(' c"}') == [ToolCallArguments(0, ' c"}')]
    assert parser.feed("}\n</tool_call>") == []
    assert parser.finish() == []


def test_withholds_text_only_where_a_call_could_begin() -> None:
    parser = ToolParser(HERMES, tools=TOOLS)
    assert parser.feed("One < two") == [TextEvent("One < two")]
    assert parser.feed("<to") == []
    assert parser.feed("ad>") == [TextEvent("<toad>")]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
CALLS = st.tuples(
    st.sampled_from([tool.name for tool in TOOLS]), st.dictionaries(st.text(max_size=6), JSON_VALUES, max_size=3)
)
CUTS = st.lists(st.integers(0, 400), max_size=12)


def cut(text: str, places: list[int]) -> list[str]:
    ends = sorted(place % (len(text) + 1) for place in places)
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]


def written(tool_format: ToolFormat, calls: list[tuple[str, str]]) -> str:
    bodies = [
        f"{name}{tool_format.arguments_tag}{arguments}"
        if tool_format.arguments_tag
        else f'{{"name": "{name}", "{tool_format.arguments_key}": {arguments}}}'
        for name, arguments in calls
    ]
    opening = "" if tool_format.bare else tool_format.opening
    return opening + tool_format.before + tool_format.between.join(bodies) + tool_format.after


@EACH_JSON_FORMAT
@given(calls=st.lists(CALLS, min_size=1, max_size=3), places=CUTS)
def test_parses_what_each_format_writes(
    tool_format: ToolFormat, calls: list[tuple[str, dict[str, object]]], places: list[int]
) -> None:
    texts = [(name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in calls]
    events = read(tool_format, *cut(written(tool_format, texts), places))
    assert joined(events) == [event for index, (name, text) in enumerate(texts) for event in call(index, name, text)]


# Fragments of valid and invalid calls
SCRAPS = st.lists(
    st.sampled_from(
        [
            *("<tool_call>", "</tool_call>", "<tool_", "</", "[TOOL_CALLS]", "[TOOL", "<|python_tag|>", "<|"),
            *("<|tool_call|>", "<|/tool_call|>", "<function=look>", "</function>", "<parameter=a>", "</parameter>"),
            *("[ARGS]", "[CALL_ID]", "look", "f-1", "[TOOL_CALLS]look[ARGS]{"),
            *('{"name": "look", "arguments": ', '{"name": "f-1", "parameters": ', '"name"', ": ", ", ", '"id": "1"'),
            *('{"a": "b\\"', '"', "\\", "{", "}", "}}", "[", "]", "{}", ";", " ", "\n", "é", "zz"),
        ]
    ),
    max_size=16,
).map("".join)


@EACH_FORMAT
@given(answer=SCRAPS, places=CUTS)
@example(answer='<tool_call>{"name": "look", "arguments": {}}</tool_call>', places=[5, 40, 50])
def test_splitting_the_text_changes_nothing(tool_format: ToolFormat, answer: str, places: list[int]) -> None:
    assert joined(read(tool_format, *cut(answer, places))) == joined(read(tool_format, answer))


# Characters that may be missing from the output: the syntax of calls.
FRAME = r'(?:\s|[][{},;:]|"(?:name|arguments|parameters|id|look|f-1|1)")*'
TAGGED_FRAME = r"(?:\s|look|f-1|\w*\s)*"


@EACH_JSON_FORMAT
@given(answer=SCRAPS)
def test_no_text_is_lost_or_added(tool_format: ToolFormat, answer: str) -> None:
    events = joined(read(tool_format, answer))
    tags = re.compile("|".join(map(re.escape, tool_format.tags)) or "(?!)")
    texts = [tags.sub("", event.text) for event in events if not isinstance(event, ToolCallStarted)]
    frame = TAGGED_FRAME if tool_format.arguments_tag else FRAME
    written = tags.sub("", answer)
    dropped = "(?s:.*)" if tool_format.opening and tool_format.opening in answer else ""  # a call that is cut off
    assert re.fullmatch(frame.join(["", *map(re.escape, texts), ""]) + dropped, written)
    if not dropped and not any(isinstance(event, ToolCallStarted) for event in events):
        assert "".join(event.text for event in events if isinstance(event, TextEvent)) == written


@EACH_FORMAT
@given(text=st.text("abc <[{\n", max_size=20))
def test_completion_without_tool_calls_is_plain_text(tool_format: ToolFormat, text: str) -> None:
    assert joined(read(tool_format, text)) == ([TextEvent(text)] if text else [])
