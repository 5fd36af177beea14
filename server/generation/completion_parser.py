"""Turns the engine's token events of one completion into text and tool calls.

Independent of the engine process and of protobuf.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from glimpse.engine.checkpoint.text.conversation import NamedTool
from glimpse.engine.checkpoint.text.output_processor import Delta, OutputProcessor, ToolCallDelta
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
from glimpse.engine.protocol.messages import FinishReason, TokenEvent
from glimpse.engine.protocol.sampling_params import ReasoningTags
from glimpse.server.request import Tools


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
    """Parses one completion. Feed it the engine's events up to the first delta with `finish`."""

    def __init__(
        self, processor: OutputProcessor, tool_calls: ToolCallReader | None, reasoning: ReasoningReader | None = None
    ) -> None:
        """
        Args:
            tool_calls: Extracts tool calls from the text; None: the text is not searched for any.
            reasoning: Separates the reasoning from the text; None: the text has none.
        """
        self._processor = processor
        self._tool_calls = tool_calls
        self._reasoning = reasoning

    def feed(self, event: TokenEvent) -> Delta:
        """Returns the output that the event adds. Its text has no part of a tool call or a left-out stop string."""
        delta = self._processor.feed(event)
        is_last = delta.finish is not None
        if self._reasoning is not None:
            self._reasoning.count(delta.token_ids)
            split = self._reasoning.read(delta.text, is_last=is_last)
            delta.reasoning, delta.text = split.reasoning, split.text
            delta.num_reasoning_tokens = self._reasoning.num_tokens
        if self._tool_calls is not None:
            delta.text, delta.tool_calls = self._tool_calls.read(delta.text, is_last=is_last)
            if delta.finish is FinishReason.STOP and self._tool_calls.model_chose_tools:
                delta.finish = FinishReason.TOOL_CALLS
        return delta
