"""Tests for tool call grammars: they allow exactly what the tool choice allows, and the parser reads it back."""

import json
import random
import re
from collections.abc import Sequence
from typing import Any

import jsonschema
import llguidance
import pytest

from glimpse.engine.checkpoint.grammar.lark import to_lark
from glimpse.engine.checkpoint.text.conversation import NamedTool, ToolChoice, ToolDefinition, ToolMode
from glimpse.engine.checkpoint.text.tools import (
    FORMATS,
    TextEvent,
    ToolCallStarted,
    ToolEvent,
    ToolFormat,
    tool_grammar,
)
from glimpse.engine.protocol.sampling_params import Grammar, GrammarKind
from glimpse.engine.worker.execution.grammar_watcher import GrammarWatcher
from tests.engine.checkpoint.text.test_tools_parser import read as read_events
from tests.engine.checkpoint.text.test_tools_parser import tool

HERMES = FORMATS["hermes"]
EACH_FORMAT = pytest.mark.parametrize("tool_format", FORMATS.values(), ids=FORMATS.keys())
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "array", "items": {"$ref": "#/$defs/day"}, "maxItems": 2},
        "unit": {"enum": ["C", "F"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
    "$defs": {"day": {"type": "integer", "minimum": 0, "maximum": 6}},
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
END = 256
TAGS = tuple(dict.fromkeys(tag for tool_format in FORMATS.values() for tag in tool_format.tags))
TAG_IDS = {tag: END + 1 + index for index, tag in enumerate(TAGS)}
WORDS = (b'"}}', b'{"name', b'": ', b"}\n", b"the", b'", "')


class Bytes:
    """A vocabulary of bytes, an end token, tags, and some tokens that span boundaries of grammar rules."""

    eos_token_id = END
    bos_token_id = None

    def __init__(self, special_ids: Sequence[int]) -> None:
        self.tokens = [bytes([byte]) for byte in range(256)]
        self.tokens += [b"<end>", *(tag.encode() for tag in TAGS), *WORDS]
        self.special_token_ids = [END, *special_ids]

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


VOCABULARY = Bytes([])
PLAIN = llguidance.LLTokenizer(llguidance.TokenizerWrapper(VOCABULARY))
SPECIAL = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Bytes(list(TAG_IDS.values()))))


TOOLS = [tool("weather", WEATHER, strict=True), tool("now", NOTHING)]
FREE_TOOLS = [tool("weather", WEATHER), tool("now", NOTHING)]


def grammar(
    tool_format: ToolFormat, choice: ToolChoice, *, parallel: bool = True, tag_ids: dict[str, int] | None = None
) -> Grammar:
    made = tool_grammar(tool_format, TOOLS, choice, parallel=parallel, tag_ids=tag_ids)
    assert made is not None
    assert made.kind is GrammarKind.LARK
    return made


def matcher(made: Grammar, tokenizer: llguidance.LLTokenizer = PLAIN) -> llguidance.LLMatcher:
    compiled = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_lark(to_lark(made)), log_level=0)
    assert not compiled.get_error()
    return compiled


def allows(made: Grammar, text: str) -> bool:
    """Returns whether the grammar accepts the whole text."""
    compiled = matcher(made)
    return compiled.try_consume_tokens(list(text.encode())) == len(text.encode()) and compiled.is_accepting()


def random_text(
    made: Grammar, seed: int, tokenizer: llguidance.LLTokenizer = PLAIN, *, begun: Sequence[int] = ()
) -> str | None:
    """Returns a random text of the grammar that begins with some tokens; None if it does not end."""
    compiled = matcher(made, tokenizer)
    draw = random.Random(seed)
    generated = b"".join(VOCABULARY.tokens[token_id] for token_id in begun)
    assert compiled.try_consume_tokens(list(begun)) == len(begun)
    for _ in range(600):
        bits = compiled.compute_bitmask()
        allowed = [token for token in range(len(VOCABULARY.tokens)) if bits[token // 8] >> token % 8 & 1]
        # Ends of strings and objects are made likelier, so that texts stay short.
        weights = [30 if token == END or VOCABULARY.tokens[token][:1] in (b'"', b"}") else 1 for token in allowed]
        (token,) = draw.choices(allowed, weights)
        if token == END:
            return generated.decode()
        assert compiled.consume_token(token)
        generated += VOCABULARY.tokens[token]
    return None


def check_calls(events: Sequence[ToolEvent]) -> list[str]:
    """Returns the names of the calls after checking their arguments against the schemas."""
    names = [event.name for event in events if isinstance(event, ToolCallStarted)]
    schemas = {"weather": WEATHER, "now": NOTHING}
    for index, name in enumerate(names):
        text = "".join(
            event.text
            for event in events
            if not isinstance(event, TextEvent | ToolCallStarted) and event.index == index
        )
        jsonschema.validate(json.loads(text), schemas[name])
    return names


@EACH_FORMAT
@pytest.mark.parametrize("parallel", [True, False])
def test_required_choice_allows_only_tool_calls(tool_format: ToolFormat, parallel: bool) -> None:
    made = grammar(tool_format, ToolMode.REQUIRED, parallel=parallel)
    answers = [answer for seed in range(25) if (answer := random_text(made, seed)) is not None]
    called: set[str] = set()
    for answer in answers:
        events = read_events(tool_format, answer, tools=TOOLS)
        names = check_calls(events)
        assert names
        assert not any(isinstance(event, TextEvent) for event in events)
        assert parallel or len(names) == 1
        called |= set(names)
    assert called == {"weather", "now"}


@EACH_FORMAT
def test_named_tool_is_called_exactly_once(tool_format: ToolFormat) -> None:
    made = grammar(tool_format, NamedTool(name="weather"))
    answers = [answer for seed in range(12) if (answer := random_text(made, seed)) is not None]
    assert answers
    assert all(check_calls(read_events(tool_format, answer, tools=TOOLS)) == ["weather"] for answer in answers)


@EACH_FORMAT
def test_names_as_mcp_servers_write_them_are_read_back(tool_format: ToolFormat) -> None:
    names = ["files", "files.read:a/b-c"]
    offered = [tool(name, NOTHING) for name in names]
    for name in names:
        made = tool_grammar(tool_format, offered, NamedTool(name=name), parallel=False)
        assert made is not None
        answer = random_text(made, seed=0)
        assert answer is not None
        events = read_events(tool_format, answer, tools=offered)
        assert [event.name for event in events if isinstance(event, ToolCallStarted)] == [name], answer


@EACH_FORMAT
def test_special_token_tags_open_tool_calls(tool_format: ToolFormat) -> None:
    tag_ids = {tag: token_id for tag, token_id in TAG_IDS.items() if tag in tool_format.tags}
    made = grammar(tool_format, ToolMode.REQUIRED, tag_ids=tag_ids)
    answers = [answer for seed in range(12) if (answer := random_text(made, seed, SPECIAL)) is not None]
    assert answers
    for answer in answers:
        assert check_calls(read_events(tool_format, answer, tools=TOOLS))
    if tool_format is FORMATS["mistral"]:
        assert matcher(made, SPECIAL).try_consume_tokens(list(b"[")) == 0


GOOD = '{"name": "weather", "arguments": {"city": "Rome", "unit": "C"}}'
OTHER = '{"name": "now", "arguments": {}}'
BAD = '{"name": "weather", "arguments": {"city": "Rome", "unit": "K"}}'


def tagged(*bodies: str) -> str:
    return "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)


@pytest.mark.parametrize(
    ("answer", "is_allowed", "is_allowed_alone"),
    [
        # completion, allowed with parallel calls, allowed without
        ("", True, True),
        ("It is <b>warm</b>.\n", True, True),
        (tagged(GOOD), True, True),
        (f"I look. {tagged(GOOD)}", True, True),
        (tagged(GOOD, OTHER), True, False),
        (f"I look. {tagged(OTHER, OTHER, GOOD)}", True, False),
        (tagged(BAD), False, False),
        (f"I look. {tagged(OTHER, BAD)}", False, False),
        ("<tool_call>\n", False, False),
        (f"{tagged(GOOD)} That was it.", False, False),
        (tagged('{"name": "other", "arguments": {}}'), False, False),
    ],
)
def test_auto_choice_allows_text_or_valid_tool_calls(answer: str, is_allowed: bool, is_allowed_alone: bool) -> None:
    assert allows(grammar(HERMES, ToolMode.AUTO), answer) == is_allowed
    assert allows(grammar(HERMES, ToolMode.AUTO, parallel=False), answer) == is_allowed_alone


@EACH_FORMAT
@pytest.mark.parametrize("parallel", [True, False])
def test_auto_choice_completes_begun_calls_validly(tool_format: ToolFormat, parallel: bool) -> None:
    made = grammar(tool_format, ToolMode.AUTO, parallel=parallel)
    begun = "{" if tool_format.bare else f"Well, {tool_format.opening}"
    answers = [answer for seed in range(12) if (answer := random_text(made, seed, begun=begun.encode())) is not None]
    assert answers
    for answer in answers:
        names = check_calls(read_events(tool_format, answer, tools=TOOLS))
        assert names
        assert parallel or len(names) == 1


@pytest.mark.parametrize("name", ["llama", "json"])
@pytest.mark.parametrize(
    ("answer", "is_allowed"),
    [("Well, {1}", True), (" \n", True), ("\n{", False), ("[1]", False), ('{"name": "x"}', False)],
)
def test_text_that_begins_like_a_bare_call_must_be_one(name: str, answer: str, is_allowed: bool) -> None:
    assert allows(grammar(FORMATS[name], ToolMode.AUTO), answer) == is_allowed


BEGUN = {
    "mistral_args": ("Well.[TOOL_CALLS]",),
    "mistral": ("Well.[TOOL_CALLS]",),
    "qwen3_coder": ("Well.\n<tool_call>", "Well.\n<function="),
    "hermes": ("Well.\n<tool_call>",),
    "phi4_mini": ("<|tool_call|>",),
    "gemma4": ("Well.<|tool_call>",),
    "lfm2": ("Well.<|tool_call_start|>",),
    "llama": ("<|python_tag|>", '{"name":', ' [ {"type": "function", "name" :'),
    "json": ('{"name":', '\n{ "type":"function","name":'),
}
"""How completions begin that trigger a grammar."""


@pytest.mark.parametrize(
    ("tool_format", "begun", "is_special"),
    [
        (FORMATS[name], begun, is_special)
        for name, texts in BEGUN.items()
        for begun in texts
        for is_special in (False, True)
        if not is_special or (FORMATS[name].opening and FORMATS[name].opening in begun)
    ],
)
def test_free_choice_constrains_calls_from_their_opening_on(
    tool_format: ToolFormat, begun: str, is_special: bool
) -> None:
    tag_ids = {tag: TAG_IDS[tag] for tag in tool_format.tags} if is_special else {}
    made = tool_grammar(tool_format, FREE_TOOLS, ToolMode.AUTO, parallel=True, tag_ids=tag_ids)
    assert made is not None
    watcher = GrammarWatcher(made, VOCABULARY.tokens)
    token_ids = text_tokens(begun, tag_ids)
    counts = [watcher.append(token_id) for token_id in token_ids]
    assert counts[:-1] == [0] * (len(counts) - 1)
    triggering = token_ids[len(token_ids) - counts[-1] :]
    tokenizer = SPECIAL if is_special else PLAIN
    drawn = [random_text(made, seed, tokenizer, begun=triggering) for seed in range(8)]
    answers = [answer for answer in drawn if answer is not None]
    assert answers
    for answer in answers:
        assert check_calls(read_events(tool_format, answer, tools=TOOLS))


def text_tokens(text: str, tag_ids: dict[str, int]) -> list[int]:
    """Encodes a text as bytes and tags."""
    parts = re.split("|".join(f"({re.escape(tag)})" for tag in tag_ids), text) if tag_ids else [text]
    return [token_id for part in parts if part for token_id in ([tag_ids[part]] if part in tag_ids else part.encode())]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", "It is <b>warm</b>, <tool_calls are no tags."),
        ("llama", 'Well. {"name": "weather", '),
        ("llama", '{"city": "Rome", "name": "x"}'),
        ("json", '[1, {"name": "x"}]'),
        ("qwen3_coder", "a < function = b"),
    ],
)
def test_text_without_an_opening_does_not_trigger_a_grammar(name: str, text: str) -> None:
    made = tool_grammar(FORMATS[name], FREE_TOOLS, ToolMode.AUTO, parallel=True)
    assert made is not None
    watcher = GrammarWatcher(made, VOCABULARY.tokens)
    assert not any(watcher.append(token_id) for token_id in text.encode())


@pytest.mark.parametrize(
    "tool_format", [each for each in FORMATS.values() if not each.bare], ids=lambda each: each.name
)
def test_response_schema_allows_json_or_valid_tool_calls(tool_format: ToolFormat) -> None:
    members: dict[str, Any] = {"properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    form = members | {"type": "object", "additionalProperties": False}
    made = tool_grammar(
        tool_format,
        TOOLS,
        ToolMode.AUTO,
        parallel=True,
        response=Grammar(kind=GrammarKind.JSON_SCHEMA, text=json.dumps(form)),
    )
    assert made is not None
    assert allows(made, '{"sum": 3}')
    assert not allows(made, '{"sum": "3"}')
    assert not allows(made, "It is 3.")
    answers = [answer for seed in range(25) if (answer := random_text(made, seed)) is not None]
    formed: set[bool] = set()
    for answer in answers:
        events = read_events(tool_format, answer, tools=TOOLS)
        if not check_calls(events):
            jsonschema.validate(json.loads(answer), form)
            assert "".join(event.text for event in events if isinstance(event, TextEvent)) == answer
        formed.add(not any(isinstance(event, ToolCallStarted) for event in events))
    assert formed == {True, False}


def test_allows_text_before_an_optional_opening_tag() -> None:
    body = '{"name": "now", "parameters": {}}'
    made = grammar(FORMATS["llama"], ToolMode.AUTO)
    assert allows(made, f"Well.<|python_tag|>{body}")
    assert allows(made, f"<|python_tag|>{body}; {body}")
    assert not allows(made, "Well.<|python_tag|>print()")


@pytest.mark.parametrize(
    ("tools", "choice", "parallel"),
    [(TOOLS, ToolMode.NONE, True), (TOOLS, ToolMode.NONE, False)],
)
def test_no_grammar_if_any_text_is_allowed(tools: list[ToolDefinition], choice: ToolChoice, parallel: bool) -> None:
    assert tool_grammar(HERMES, tools, choice, parallel=parallel) is None


def test_arguments_are_an_object_even_without_a_type() -> None:
    made = tool_grammar(HERMES, [tool("f", {})], ToolMode.REQUIRED, parallel=True)
    assert made is not None
    assert allows(made, tagged('{"name": "f", "arguments": {"any": [1]}}'))
    assert not allows(made, tagged('{"name": "f", "arguments": [1]}'))
