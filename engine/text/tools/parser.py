"""The text of an answer → text and calls of tools, as it comes: one state machine for all formats.

What is said does not depend on how the text is cut into pieces. A call is told as soon as its name and the beginning of
its arguments are known; the arguments follow verbatim, right or wrong. What turns out not to be a call is text, tags
included. White space beside a call belongs to the format, unless text comes after it. Checks no arguments.
"""

import itertools
import json
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar, assert_never

from glimpse.engine.text.conversation import ToolDefinition
from glimpse.engine.text.tools.formats import ToolFormat


@dataclass(frozen=True, slots=True)
class TextEvent:
    """Text that is no part of a call."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStarted:
    """A call begins."""

    index: int
    """Its place among the answer's calls, from 0."""
    name: str
    """The function's."""


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """A call's arguments go on."""

    index: int
    text: str


ToolEvent: TypeAlias = TextEvent | ToolCallStarted | ToolCallArguments

_T = TypeVar("_T")
_Reading: TypeAlias = Generator[None, None, _T]
"""Reads characters, yields where there are no more of them yet, and returns what it found."""

_ARGUMENTS_KEYS = ('"arguments"', '"parameters"')
"""Models mix them up."""
_OTHER_KEYS = ('"type"', '"id"')
"""Members with which models adorn a call. Their values are strings that tell nothing; with any others it is no call."""


class _NotACallError(Exception):
    """What is read is no call, or no longer one."""


class ToolParser:
    """Reads one answer."""

    def __init__(self, tool_format: ToolFormat, *, tools: Sequence[ToolDefinition]) -> None:
        """
        Args:
            tool_format: In which the model writes.
            tools: Those offered to the model. A call of another is text.
        """
        self._format = tool_format
        self._tags = tuple(tag for tag in (tool_format.opening, tool_format.closing) if tag)
        self._names = frozenset(tool.name for tool in tools)
        self._input = ""
        self._position = 0
        self._ended = False
        self._held: list[str] = []
        """Characters that were read and may yet be text."""
        self._events: list[ToolEvent] = []
        self._num_calls = 0
        self._bare = tool_format.bare
        """A call may begin here without an opening."""
        self._closing_is_due = False
        self._after_call = False
        """No text has come since the last call."""
        self._reading = self._read_answer()
        next(self._reading)

    def feed(self, text: str) -> list[ToolEvent]:
        """What these next characters of the answer bring."""
        self._input = self._input[self._position :] + text
        self._position = 0
        next(self._reading)
        return self._take_events()

    def finish(self) -> list[ToolEvent]:
        """What is left when no more text comes."""
        self._ended = True
        next(self._reading, None)
        return self._take_events()

    def _read_answer(self) -> _Reading[None]:
        while char := (yield from self._peek()):
            if char.isspace() or (self._after_call and self._bare and char == self._format.between.strip()):
                self._hold()
            elif self._bare and char in "[{":
                yield from self._read_calls()
            elif (tag := (yield from self._read_tag())) == self._format.closing and self._closing_is_due:
                self._closing_is_due = False
                self._bare = self._format.bare
                self._held.clear()
            elif tag and tag == self._format.opening:
                yield from self._read_calls()
            else:
                self._release()
        if not self._after_call:
            self._release()

    def _read_tag(self) -> _Reading[str]:
        """The tag that is here. Without one it is empty, and what looked like one is held, at least a character."""
        read = ""
        while char := (yield from self._peek()):
            if not any(tag.startswith(read + char) for tag in self._tags):
                if not read:
                    self._hold()
                return ""
            read += char
            self._hold()
            if read in self._tags:
                return read
        return ""

    def _read_calls(self) -> _Reading[None]:
        """Reads one call or a list of them. What is none is released."""
        try:
            if (yield from self._accept("[")):
                yield from self._read_call()
                while (yield from self._accept(",")):
                    yield from self._read_call()
                yield from self._expect("]")
            else:
                yield from self._read_call()
            self._held.clear()
        except _NotACallError:
            # White space may be followed by the closing tag: a brace was forgotten.
            if not (self._after_call and "".join(self._held).isspace()):
                self._release()

    def _read_call(self) -> _Reading[None]:
        name = ""
        is_open = False
        yield from self._expect("{")
        while True:
            key = yield from self._read_string()
            yield from self._expect(":")
            if key == '"name"' and not name:
                name = yield from self._read_name()
            elif key in _ARGUMENTS_KEYS and name and not is_open:
                yield from self._read_arguments(name)
                is_open = True
            elif key in _OTHER_KEYS:
                yield from self._read_string()
            else:
                raise _NotACallError
            if (yield from self._accept("}")):
                break
            yield from self._expect(",")
        if not is_open:
            raise _NotACallError
        self._held.clear()

    def _read_name(self) -> _Reading[str]:
        text = yield from self._read_string()
        try:
            name: str = json.loads(text)
        except ValueError:
            raise _NotACallError from None
        if name not in self._names:
            raise _NotACallError
        return name

    def _read_arguments(self, name: str) -> _Reading[None]:
        """Opens the call and lets its arguments out: an object, known by its brackets and strings alone."""
        yield from self._skip_space()
        if (yield from self._peek()) != "{":
            raise _NotACallError
        self._open_call(name)
        depth = 0
        in_string = is_escaped = False
        while char := (yield from self._peek()):
            if in_string:
                in_string = is_escaped or char != '"'
                is_escaped = char == "\\" and not is_escaped
            elif char == self._format.closing[:1]:
                raise _NotACallError  # the closing tag, too soon: outside of strings JSON has no such character
            else:
                in_string = char == '"'
                depth += (char in "{[") - (char in "}]")
            self._events.append(ToolCallArguments(self._num_calls - 1, self._read()))
            if not depth:
                return
        raise _NotACallError

    def _read_string(self) -> _Reading[str]:
        """A JSON string, as it is written."""
        yield from self._skip_space()
        if (yield from self._peek()) != '"':
            raise _NotACallError
        text = self._hold()
        is_escaped = False
        while char := (yield from self._peek()):
            text += self._hold()
            if char == '"' and not is_escaped:
                return text
            is_escaped = char == "\\" and not is_escaped
        raise _NotACallError

    def _expect(self, char: str) -> _Reading[None]:
        if not (yield from self._accept(char)):
            raise _NotACallError

    def _accept(self, char: str) -> _Reading[bool]:
        """Holds the next character that is not white space if it is this one; whether it is."""
        yield from self._skip_space()
        accepted = (yield from self._peek()) == char
        if accepted:
            self._hold()
        return accepted

    def _skip_space(self) -> _Reading[None]:
        while (yield from self._peek()).isspace():
            self._hold()

    def _peek(self) -> _Reading[str]:
        """The next character; empty at the answer's end."""
        while self._position == len(self._input):
            if self._ended:
                return ""
            yield
        return self._input[self._position]

    def _read(self) -> str:
        char = self._input[self._position]
        self._position += 1
        return char

    def _hold(self) -> str:
        char = self._read()
        self._held.append(char)
        return char

    def _release(self) -> None:
        """What is held is text."""
        if self._held:
            self._events.append(TextEvent("".join(self._held)))
            self._held.clear()
            self._bare = self._after_call = False

    def _open_call(self, name: str) -> None:
        self._held.clear()
        self._events.append(ToolCallStarted(self._num_calls, name))
        self._num_calls += 1
        self._after_call = True
        self._closing_is_due = bool(self._format.closing)
        # Until the closing tag, some models write further calls without another opening.
        self._bare = self._format.bare or self._closing_is_due

    def _take_events(self) -> list[ToolEvent]:
        """The events since the last time, those of one kind that follow each other made one."""
        events, self._events = self._events, []
        return [event for _, run in itertools.groupby(events, _kind) for event in _joined(list(run))]


def _kind(event: ToolEvent) -> tuple[type, int]:
    return type(event), -1 if isinstance(event, TextEvent) else event.index


def _joined(run: Sequence[ToolEvent]) -> Sequence[ToolEvent]:
    """Events of one kind, as few as they can be."""
    match run[0]:
        case ToolCallStarted():
            return run
        case TextEvent():
            return [TextEvent("".join(event.text for event in run if isinstance(event, TextEvent)))]
        case ToolCallArguments(index=index):
            return [
                ToolCallArguments(index, "".join(event.text for event in run if isinstance(event, ToolCallArguments)))
            ]
        case _:
            assert_never(run[0])
