"""Turns the engine's token events of one completion into text and tool calls.

Independent of the engine process and of protobuf.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import assert_never

import msgspec

from glimpse.engine.checkpoint.text.conversation import NamedTool
from glimpse.engine.checkpoint.text.output_processor import OutputProcessor, TokenText
from glimpse.engine.checkpoint.text.reasoning import ReasoningMeter, ReasoningParser, ReasoningSplit
from glimpse.engine.checkpoint.text.tokenizer import Tokenizer
from glimpse.engine.checkpoint.text.tools import (
    TextEvent,
    ToolCallArguments,
    ToolCallStarted,
    ToolEvent,
    ToolFormat,
    new_tool_call_id,
    new_tool_parser,
)
from glimpse.engine.protocol.messages import FinishReason, RequestStats, TokenEvent
from glimpse.engine.protocol.sampling_params import ReasoningTags
from glimpse.server.request import Tools


class CompletionFinishReason(StrEnum):
    """Why a completion ended."""

    STOP = "stop"
    """The model ended it, or a stop string or stop token id was reached."""
    LENGTH = "length"
    """The token limit or the context window was reached."""
    TOOL_CALLS = "tool_calls"
    """The model chose to call tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallDelta:
    """New output of one tool call."""

    index: int
    """Index of the call in the completion."""
    id: str | None
    """Set in the call's first delta."""
    name: str | None
    """Set in the call's first delta."""
    arguments: str
    """Text to append to the arguments."""


class ParsedDelta(msgspec.Struct, frozen=True, kw_only=True):
    """Output that one event adds to a completion."""

    text: str
    tool_calls: tuple[ToolCallDelta, ...]
    """At most one delta per tool call."""
    tokens: tuple[TokenText, ...]
    """Tokens with log-probabilities; empty unless the request asks for them."""
    token_ids: Sequence[int] = ()
    """All tokens generated."""
    num_tokens: int
    """Their number."""
    reasoning: str = ""
    """What the model wrote between its reasoning tags."""
    num_reasoning_tokens: int = 0
    """Tokens of the completion's reasoning so far."""
    stats: RequestStats
    """Of the event."""
    finish_reason: CompletionFinishReason | None
    """Set in the last delta."""


class ToolCallReader:
    """Extracts tool calls from the text of one completion."""

    def __init__(self, tool_format: ToolFormat, tools: Tools) -> None:
        self._format = tool_format
        self._parser = new_tool_parser(tool_format, tools=[*filter(tools.may_call, tools.definitions)])
        self._is_named = isinstance(tools.choice, NamedTool)
        self._has_called = False

    @property
    def model_chose_tools(self) -> bool:
        """True if the completion calls tools and the client did not name the tool to call."""
        return self._has_called and not self._is_named

    def read(self, text: str, *, is_last: bool) -> tuple[str, tuple[ToolCallDelta, ...]]:
        """Splits the next text of the completion into plain text and deltas of tool calls."""
        events = self._parser.feed(text)
        if is_last:
            events += self._parser.finish()
        plain = "".join(event.text for event in events if isinstance(event, TextEvent))
        tool_calls = self._merge(events)
        self._has_called |= bool(tool_calls)
        return plain, tool_calls

    def _merge(self, events: Sequence[ToolEvent]) -> tuple[ToolCallDelta, ...]:
        """Returns one delta per tool call: clients join deltas by index and expect one of each in a message."""
        names: dict[int, str] = {}
        arguments: dict[int, list[str]] = {}
        for event in events:
            match event:
                case TextEvent():
                    continue
                case ToolCallStarted(index=index, name=name):
                    names[index] = name
                    arguments[index] = []
                case ToolCallArguments(index=index, text=text):
                    arguments.setdefault(index, []).append(text)
                case _:
                    assert_never(event)
        return tuple(
            ToolCallDelta(
                index=index,
                id=new_tool_call_id(self._format) if index in names else None,
                name=names.get(index),
                arguments="".join(texts),
            )
            for index, texts in arguments.items()
        )


class ReasoningReader:
    """Separates the reasoning of one completion from its text."""

    def __init__(self, tags: ReasoningTags, tokenizer: Tokenizer, *, include: bool) -> None:
        """`include`: the reasoning is returned; if not, it is only counted."""
        self._parser = ReasoningParser(tags)
        self._meter = ReasoningMeter(tags)
        self._tokenizer = tokenizer
        self._include = include

    @property
    def num_tokens(self) -> int:
        """Tokens of the reasoning so far."""
        return self._meter.num_tokens

    def count(self, token_ids: Sequence[int]) -> None:
        """Counts the next tokens of the completion, whose text may still be withheld."""
        for token_id in token_ids:
            self._meter.append(self._tokenizer.token_bytes(token_id))

    def read(self, text: str, *, is_last: bool) -> ReasoningSplit:
        """Splits the next text of the completion."""
        split = self._parser.feed(text)
        if is_last:
            rest = self._parser.finish()
            split = ReasoningSplit(reasoning=split.reasoning + rest.reasoning, text=split.text + rest.text)
        return split if self._include else replace(split, reasoning="")


class CompletionParser:
    """Parses one completion. Feed it the engine's events up to the first delta with a finish reason."""

    def __init__(
        self, processor: OutputProcessor, tool_calls: ToolCallReader | None, reasoning: ReasoningReader | None = None
    ) -> None:
        """
        Args:
            processor: Decodes the tokens.
            tool_calls: Extracts tool calls from the text; None: the text is not searched for any.
            reasoning: Separates the reasoning from the text; None: the text has none.
        """
        self._processor = processor
        self._tool_calls = tool_calls
        self._reasoning = reasoning

    def feed(self, event: TokenEvent) -> ParsedDelta:
        """Returns the output that the event adds. Its text has no part of a tool call or a left-out stop string."""
        delta = self._processor.feed(event)
        is_last = delta.finish is not None
        reasoning, text, tool_calls = "", delta.text, tuple[ToolCallDelta, ...]()
        if self._reasoning is not None:
            self._reasoning.count(event.token_ids[: delta.num_tokens])
            split = self._reasoning.read(text, is_last=is_last)
            reasoning, text = split.reasoning, split.text
        if self._tool_calls is not None:
            text, tool_calls = self._tool_calls.read(text, is_last=is_last)
        return ParsedDelta(
            reasoning=reasoning,
            num_reasoning_tokens=0 if self._reasoning is None else self._reasoning.num_tokens,
            text=text,
            tool_calls=tool_calls,
            tokens=delta.tokens,
            token_ids=event.token_ids[: delta.num_tokens],
            num_tokens=delta.num_tokens,
            stats=event.stats,
            finish_reason=None if delta.finish is None else self._finish_reason(delta.finish),
        )

    def _finish_reason(self, finish: FinishReason) -> CompletionFinishReason:
        if finish is FinishReason.LENGTH:
            return CompletionFinishReason.LENGTH
        if self._tool_calls is not None and self._tool_calls.model_chose_tools:
            return CompletionFinishReason.TOOL_CALLS
        return CompletionFinishReason.STOP
