"""Streaming parser that splits generated text into plain text and tool calls: one state machine for all JSON formats.

The result does not depend on how the text is split. A call is reported as soon as its name and the beginning of its
arguments are known; the arguments follow verbatim and are not validated. What turns out not to be a call is text, but
the format's tags are never text, nor is a call that the completion ends in before its arguments. White space around a
call belongs to the format, unless text follows it.
"""

import itertools
import json
import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from glimpse.engine.checkpoint.text.conversation import ToolDefinition
from glimpse.engine.checkpoint.text.tools.formats import ToolFormat


@dataclass(frozen=True, slots=True)
class TextEvent:
    """Text that is not part of a tool call."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStarted:
    """A tool call begins."""

    index: int
    """Index of the call in the completion, from 0."""
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """The next part of a tool call's arguments."""

    index: int
    text: str


ToolEvent: TypeAlias = TextEvent | ToolCallStarted | ToolCallArguments

_T = TypeVar("_T")
Reader: TypeAlias = Generator[None, None, _T]
"""Reads characters, yields when it needs more of them, and returns what it has read."""

_ARGUMENTS_KEYS = ('"arguments"', '"parameters"')
"""Models confuse them."""
_MAX_NAME_CHARACTERS = 256
_OTHER_KEYS = ('"type"', '"id"')
"""Members that models add to a call; their values are strings and ignored. With any other member it is not a call."""


class NotACallError(Exception):
    """The text is not a tool call, or no longer one."""


class ToolParser:
    """Parses one completion."""

    def __init__(
        self, tool_format: ToolFormat, *, tools: Sequence[ToolDefinition], openings: Sequence[str] = ()
    ) -> None:
        """
        Args:
            tools: The tools offered to the model. A call of any other is text.
            openings: Tags that begin calls. Default: that of the format.
        """
        self._format = tool_format
        self._openings = openings or (tool_format.opening,)
        self._tags = tuple(tag for tag in dict.fromkeys((*self._openings, *tool_format.tags)) if tag)
        self._never_text = re.compile("|".join(map(re.escape, tool_format.tags)) or "(?!)")
        self._names = frozenset(tool.name for tool in tools)
        self._input = ""
        self._position = 0
        self._ended = False
        self._withheld: list[str] = []
        """Characters that were read and may turn out to be text."""
        self._events: list[ToolEvent] = []
        self._num_calls = 0
        self._bare = tool_format.bare
        """A call may begin here without an opening tag."""
        self._closing_is_due = False
        self._after_call = False
        """No text has followed the last call yet."""
        self._reader = self._read_answer()
        next(self._reader)

    def feed(self, text: str) -> list[ToolEvent]:
        """Parses the next characters of the completion."""
        self._input = self._input[self._position :] + text
        self._position = 0
        next(self._reader)
        return self._take_events()

    def finish(self) -> list[ToolEvent]:
        """Parses what is left at the end of the completion."""
        self._ended = True
        next(self._reader, None)
        return self._take_events()

    def _read_answer(self) -> Reader[None]:
        while char := (yield from self._peek()):
            if char.isspace() or (self._after_call and self._bare and char == self._format.between.strip()):
                self._withhold()
            elif self._bare and char in "[{":
                yield from self._read_calls("")
            elif (tag := (yield from self._read_tag())) == self._format.closing and self._closing_is_due:
                self._closing_is_due = False
                self._bare = self._format.bare
                self._withheld.clear()
            elif tag and tag in self._openings:
                yield from self._read_calls(tag)
            else:
                self._release()
        if not self._after_call:
            self._release()

    def _read_tag(self) -> Reader[str]:
        """Reads a tag. Returns "" if there is none; what was read, at least one character, is withheld."""
        read = ""
        while char := (yield from self._peek()):
            if not any(tag.startswith(read + char) for tag in self._tags):
                if not read:
                    self._withhold()
                return ""
            read += char
            self._withhold()
            if read in self._tags:
                return read
        return ""

    def _read_calls(self, opening: str) -> Reader[None]:
        """Reads one call or a list of them, after an opening tag or "". Releases what is not a call."""
        try:
            if (yield from self._accept("[")):
                yield from self._read_call()
                while (yield from self._accept(",")):
                    yield from self._read_call()
                yield from self._expect("]")
            else:
                yield from self._read_call()
            self._withheld.clear()
        except NotACallError:
            # White space may precede the closing tag if the model has forgotten a brace.
            if not (self._after_call and "".join(self._withheld).isspace()):
                self._release_failed(opening)

    def _release_failed(self, opening: str) -> None:
        """Releases what was read after an opening tag or "" and is not a call. A call that is cut off is dropped."""
        if self._ended and opening:
            self._withheld.clear()
        self._release()

    def _read_call(self) -> Reader[None]:
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
                raise NotACallError
            if (yield from self._accept("}")):
                break
            yield from self._expect(",")
        if not is_open:
            raise NotACallError
        self._withheld.clear()

    def _read_name(self) -> Reader[str]:
        text = yield from self._read_string()
        try:
            name: str = json.loads(text)
        except ValueError:
            raise NotACallError from None
        if name not in self._names:
            raise NotACallError
        return name

    def _read_arguments(self, name: str) -> Reader[None]:
        """Begins the call and emits its arguments: an object, delimited by counting brackets outside of strings."""
        yield from self._skip_space()
        if (yield from self._peek()) != "{":
            raise NotACallError
        self._open_call(name)
        depth = 0
        in_string = is_escaped = False
        while char := (yield from self._peek()):
            if in_string:
                in_string = is_escaped or char != '"'
                is_escaped = char == "\\" and not is_escaped
            elif char == self._format.closing[:1]:
                raise NotACallError  # the closing tag, too early: JSON has no such character outside of strings
            else:
                in_string = char == '"'
                depth += (char in "{[") - (char in "}]")
            self._emit(self._read())
            if not depth:
                return
        raise NotACallError

    def _read_string(self) -> Reader[str]:
        """Reads a JSON string and returns it verbatim."""
        yield from self._skip_space()
        if (yield from self._peek()) != '"':
            raise NotACallError
        text = self._withhold()
        is_escaped = False
        while char := (yield from self._peek()):
            text += self._withhold()
            if char == '"' and not is_escaped:
                return text
            is_escaped = char == "\\" and not is_escaped
        raise NotACallError

    def _read_name_to(self, end: str) -> Reader[str]:
        """Reads a name on one line, and the text after it; both are withheld."""
        name = ""
        while char := (yield from self._peek()):
            if char == "\n" or len(name) > _MAX_NAME_CHARACTERS:
                break
            name += self._withhold()
            if name.endswith(end):
                return name.removesuffix(end)
        raise NotACallError

    def _read_bare(self, ends: str) -> Reader[str]:
        """Reads a name or a value without quotes, up to one of these characters."""
        text = ""
        while (char := (yield from self._peek())) and char not in ends and char != self._format.closing[0]:
            text += self._read()
        if not char or char not in ends:
            raise NotACallError
        return text.strip()

    def _expect_text(self, text: str) -> Reader[None]:
        for wanted in text:
            if (yield from self._peek()) != wanted:
                raise NotACallError
            self._withhold()

    def _expect(self, char: str) -> Reader[None]:
        if not (yield from self._accept(char)):
            raise NotACallError

    def _accept(self, char: str) -> Reader[bool]:
        """Withholds the next non-space character if it is `char`; returns whether it is."""
        yield from self._skip_space()
        accepted = (yield from self._peek()) == char
        if accepted:
            self._withhold()
        return accepted

    def _skip_space(self) -> Reader[None]:
        while (yield from self._peek()).isspace():
            self._withhold()

    def _peek(self) -> Reader[str]:
        """Returns the next character; "" at the end of the completion."""
        while self._position == len(self._input):
            if self._ended:
                return ""
            yield
        return self._input[self._position]

    def _read(self) -> str:
        char = self._input[self._position]
        self._position += 1
        return char

    def _withhold(self) -> str:
        char = self._read()
        self._withheld.append(char)
        return char

    def _release(self) -> None:
        """Emits the withheld characters as text, without tags."""
        if self._withheld:
            if text := self._never_text.sub("", "".join(self._withheld)):
                self._events.append(TextEvent(text))
            self._withheld.clear()
            self._bare = self._after_call = False

    def _emit(self, arguments: str) -> None:
        """Emits a part of the open call's arguments."""
        if arguments:
            self._events.append(ToolCallArguments(self._num_calls - 1, arguments))

    def _open_call(self, name: str) -> None:
        self._withheld.clear()
        self._events.append(ToolCallStarted(self._num_calls, name))
        self._num_calls += 1
        self._after_call = True
        self._closing_is_due = bool(self._format.closing)
        # Some models write further calls without an opening tag before the closing one.
        self._bare = self._format.bare or self._closing_is_due

    def _take_events(self) -> list[ToolEvent]:
        """Returns the new events; consecutive events of one kind are merged."""
        events, self._events = self._events, []
        return [event for _, run in itertools.groupby(events, _kind) for event in _merged(list(run))]


def escaped(text: str) -> str:
    """Returns a text as it stands inside a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _kind(event: ToolEvent) -> tuple[type, int]:
    return type(event), -1 if isinstance(event, TextEvent) else event.index


def _merged(run: Sequence[ToolEvent]) -> Sequence[ToolEvent]:
    """Merges consecutive events of one kind."""
    first = run[0]
    if isinstance(first, ToolCallStarted):
        return run
    return [replace(first, text="".join(event.text for event in run if not isinstance(event, ToolCallStarted)))]
