"""Tests for the completion parser: text, tool calls and finish reasons, however tokens are split."""

import random

import pytest

from glimpse.engine.checkpoint.location import DEFAULT_MODEL
from glimpse.engine.checkpoint.text.conversation import NamedTool, ToolChoice, ToolDefinition, ToolMode
from glimpse.engine.checkpoint.text.output_processor import Delta, OutputProcessor
from glimpse.engine.checkpoint.text.tokenizer import load_tokenizer
from glimpse.engine.checkpoint.text.tools import FORMATS, tag_ids
from glimpse.engine.protocol.messages import FinishReason, TokenEvent
from glimpse.engine.protocol.sampling_params import ReasoningTags
from glimpse.server.generation.completion_parser import (
    CompletionParser,
    ReasoningReader,
    ToolCallReader,
)
from glimpse.server.request import Tools

TOKENIZER = load_tokenizer(DEFAULT_MODEL)
HERMES = FORMATS["hermes"]
LOOK = ToolDefinition(name="look", description=None, parameters='{"type": "object"}', strict=False)
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "ä <b>"}}\n</tool_call>'
END = 0
"""An arbitrary token that ends the completion."""


def tools(choice: ToolChoice = ToolMode.AUTO) -> Tools:
    return Tools(definitions=(LOOK,), choice=choice, parallel=True)


def parse(
    text: str,
    *,
    choice: ToolChoice = ToolMode.AUTO,
    stop: tuple[str, ...] = (),
    seed: int = 0,
    cut: bool = False,
    reasoning: ReasoningReader | None = None,
) -> list[Delta]:
    """Returns the deltas of a completion with this text, in events of a few tokens; `cut`: by the token limit."""
    hidden = TOKENIZER.special_ids - set(tag_ids(HERMES, TOKENIZER).values())
    answer = CompletionParser(
        OutputProcessor(TOKENIZER, stop=stop, hidden_ids=hidden), ToolCallReader(HERMES, tools(choice)), reasoning
    )
    token_ids, draw, deltas = (
        [*TOKENIZER.encode(text), *([] if cut else [END])],
        random.Random(seed),
        list[Delta](),
    )
    while token_ids and not (deltas and deltas[-1].finish):
        count = draw.randint(1, 5)
        some, token_ids = token_ids[:count], token_ids[count:]
        finish = None if token_ids else FinishReason.LENGTH if cut else FinishReason.STOP
        deltas.append(answer.feed(TokenEvent(request_id="r", token_ids=some, finish=finish)))
    return deltas


@pytest.mark.parametrize("seed", range(5))
def test_separates_text_from_tool_calls_however_tokens_are_split(seed: int) -> None:
    deltas = parse(f"Let me see.\n{CALL}\n{CALL}", seed=seed)
    assert "".join(delta.text for delta in deltas) == "Let me see."
    calls = [call for delta in deltas for call in delta.tool_calls]
    for index in (0, 1):
        own = [call for call in calls if call.index == index]
        assert "".join(call.arguments for call in own) == '{"at": "ä <b>"}'
        assert [bool(call.id and call.name == "look") for call in own] == [True] + [False] * (len(own) - 1)
    assert len({call.id for call in calls if call.id}) == 2
    for delta in deltas:
        assert len({call.index for call in delta.tool_calls}) == len(delta.tool_calls)


@pytest.mark.parametrize(
    ("text", "choice", "cut", "finish_reason"),
    [
        ("Hello", ToolMode.AUTO, False, FinishReason.STOP),
        (CALL, ToolMode.AUTO, False, FinishReason.TOOL_CALLS),
        (CALL, ToolMode.REQUIRED, False, FinishReason.TOOL_CALLS),
        (CALL, NamedTool(name="look"), False, FinishReason.STOP),
        (CALL, ToolMode.AUTO, True, FinishReason.LENGTH),
        (CALL[:30], ToolMode.AUTO, True, FinishReason.LENGTH),
    ],
)
def test_finish_reason_is_tool_calls_only_if_the_model_chose_the_tool(
    text: str, choice: ToolChoice, cut: bool, finish_reason: FinishReason
) -> None:
    deltas = parse(text, choice=choice, cut=cut)
    assert [delta.finish for delta in deltas if delta.finish] == [finish_reason]


def test_text_that_is_not_a_tool_call_stays_text_without_its_tag() -> None:
    text = 'A <tool_call> {"name": "other", "arguments": {}} b'
    assert "".join(delta.text for delta in parse(text)) == text.replace("<tool_call>", "")


def test_stop_string_ends_a_completion_before_its_tool_calls() -> None:
    deltas = parse(f"So. END {CALL}", stop=("END",))
    assert ("".join(delta.text for delta in deltas).rstrip(), deltas[-1].finish) == (
        "So.",
        FinishReason.STOP,
    )
    assert not any(delta.tool_calls for delta in deltas)


def reasoning(*, include: bool = True) -> ReasoningReader:
    return ReasoningReader(ReasoningTags(opening="<think>", closing="</think>"), TOKENIZER, include=include)


@pytest.mark.parametrize("seed", range(5))
def test_tool_calls_are_found_after_the_reasoning_and_not_in_it(seed: int) -> None:
    thought = f"Maybe {CALL} so"
    deltas = parse(f"<think>{thought}</think>\n\nLet me see.\n{CALL}", seed=seed, reasoning=reasoning())
    assert "".join(delta.reasoning for delta in deltas) == thought
    assert "".join(delta.text for delta in deltas) == "Let me see."
    assert "".join(call.arguments for delta in deltas for call in delta.tool_calls) == '{"at": "ä <b>"}'
    assert deltas[-1].num_reasoning_tokens == len(TOKENIZER.encode(thought))
    assert deltas[-1].finish is FinishReason.TOOL_CALLS


def test_reasoning_that_is_left_out_is_counted_all_the_same() -> None:
    deltas = parse("<think>So.</think>Yes.", reasoning=reasoning(include=False))
    assert ("".join(delta.reasoning for delta in deltas), "".join(delta.text for delta in deltas)) == ("", "Yes.")
    assert deltas[-1].num_reasoning_tokens == len(TOKENIZER.encode("So."))


def test_reasoning_that_is_cut_is_not_text() -> None:
    deltas = parse("<think>So, the </th", cut=True, reasoning=reasoning())
    assert ("".join(delta.reasoning for delta in deltas), "".join(delta.text for delta in deltas)) == (
        "So, the </th",
        "",
    )
    assert deltas[-1].num_reasoning_tokens == sum(len(delta.token_ids) for delta in deltas) - len(
        TOKENIZER.encode("<think>")
    )
