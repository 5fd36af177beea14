"""One answer as it comes: the engine's events → text and calls of tools. Knows no engine process and no protobuf."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from glimpse.engine.protocol import FinishReason, TokenEvent
from glimpse.engine.text.assembler import Assembler, TokenText
from glimpse.engine.text.conversation import NamedTool
from glimpse.engine.text.tools import ArgumentsOut, CallOpened, TextOut, ToolEvent, ToolFormat, ToolParser, new_call_id
from glimpse.server.request import Tools


class Ending(StrEnum):
    """Why an answer ended."""

    STOP = "stop"
    """The model ended it, or a stop text or stop token id was reached."""
    LENGTH = "length"
    """The token limit or the context window was reached."""
    TOOL_CALLS = "tool_calls"
    """The model calls tools that it chose itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDelta:
    """What is new of a call of a tool."""

    index: int
    """The call's place among the answer's calls."""
    id: str | None
    """In the call's first delta."""
    name: str | None
    """In the call's first delta."""
    arguments: str
    """Text to be appended to the arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerDelta:
    """What an event adds to an answer."""

    text: str
    calls: tuple[CallDelta, ...]
    """At most one of each call."""
    tokens: tuple[TokenText, ...]
    """With their log-probabilities; empty where these were not asked for."""
    num_tokens: int
    """Tokens generated."""
    num_cached: int
    """Prompt tokens that the prefix cache spared, as far as the event says."""
    num_encoded: int
    """Media of the prompt that were encoded for the answer, as far as the event says."""
    ending: Ending | None
    """In the last delta."""


class CallReader:
    """Finds the calls of tools in one answer's text."""

    def __init__(self, tool_format: ToolFormat, tools: Tools) -> None:
        self._format = tool_format
        self._parser = ToolParser(tool_format, tools=tools.definitions)
        self._is_named = isinstance(tools.choice, NamedTool)
        self._has_called = False

    @property
    def calls_by_choice(self) -> bool:
        """The answer calls tools, and it was the model that chose them."""
        return self._has_called and not self._is_named

    def read(self, text: str, *, is_last: bool) -> tuple[str, tuple[CallDelta, ...]]:
        """What is text of this piece of the answer, and what belongs to calls."""
        events = self._parser.feed(text)
        if is_last:
            events += self._parser.finish()
        shown = "".join(event.text for event in events if isinstance(event, TextOut))
        calls = self._joined(events)
        self._has_called |= bool(calls)
        return shown, calls

    def _joined(self, events: Sequence[ToolEvent]) -> tuple[CallDelta, ...]:
        """One delta for each call: clients put deltas together by their index, and expect one of each."""
        names: dict[int, str] = {}
        arguments: dict[int, list[str]] = {}
        for event in events:
            match event:
                case TextOut():
                    continue
                case CallOpened(index=index, name=name):
                    names[index] = name
                    arguments[index] = []
                case ArgumentsOut(index=index, text=text):
                    arguments.setdefault(index, []).append(text)
                case _:
                    assert_never(event)
        return tuple(
            CallDelta(
                index=index,
                id=new_call_id(self._format) if index in names else None,
                name=names.get(index),
                arguments="".join(texts),
            )
            for index, texts in arguments.items()
        )


class Answer:
    """One answer. Feed it the engine's events up to the first delta with an ending."""

    def __init__(self, assembler: Assembler, calls: CallReader | None) -> None:
        """`calls` finds the calls in the text; None: it has none."""
        self._assembler = assembler
        self._calls = calls

    def feed(self, event: TokenEvent) -> AnswerDelta:
        """What the event adds. Neither part of a stop text nor of a call's tags is ever let out as text."""
        delta = self._assembler.feed(event)
        text, calls = delta.text, tuple[CallDelta, ...]()
        if self._calls is not None:
            text, calls = self._calls.read(text, is_last=delta.finish is not None)
        return AnswerDelta(
            text=text,
            calls=calls,
            tokens=delta.tokens,
            num_tokens=delta.num_tokens,
            num_cached=event.num_cached_tokens,
            num_encoded=event.num_encoded_media,
            ending=None if delta.finish is None else self._ending(delta.finish),
        )

    def _ending(self, finish: FinishReason) -> Ending:
        if finish is FinishReason.LENGTH:
            return Ending.LENGTH
        return Ending.TOOL_CALLS if self._calls is not None and self._calls.calls_by_choice else Ending.STOP
