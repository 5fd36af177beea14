"""Streaming parser that splits an answer into its reasoning and the text after it, and a counter of its tokens.

The result does not depend on how the answer is split. White space next to the tags belongs to the format. An answer
that does not begin with reasoning is text, and reasoning that is never closed is reasoning to the end.
"""

from dataclasses import dataclass
from enum import Enum, auto

from glimpse.engine.protocol.sampling_params import ReasoningTags


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningSplit:
    """New text of an answer."""

    reasoning: str = ""
    text: str = ""


class _State(Enum):
    BEFORE = auto()
    """Only white space, or a part of the opening tag, so far."""
    OPENED = auto()
    """The reasoning has begun, and nothing of it was read. Models repeat an opening tag that is in the prompt."""
    REASONING = auto()
    CLOSED = auto()
    """Only white space since the closing tag."""
    ANSWER = auto()


class ReasoningParser:
    """Parses one answer."""

    def __init__(self, tags: ReasoningTags) -> None:
        self._tags = tags
        self._state = _State.OPENED if tags.is_open else _State.BEFORE
        self._withheld = ""
        """What was read and not emitted yet."""

    @property
    def is_reasoning(self) -> bool:
        """The reasoning has begun and has not ended."""
        return self._state in (_State.OPENED, _State.REASONING)

    @property
    def has_answered(self) -> bool:
        """All that follows is text."""
        return self._state is _State.ANSWER

    @property
    def is_closing(self) -> bool:
        """What was read last may be the beginning of the closing tag."""
        return self.is_reasoning and _num_begun(self._tags.closing, self._withheld) > 0

    def feed(self, text: str) -> ReasoningSplit:
        """Parses the next characters of the answer."""
        if self.has_answered:
            return ReasoningSplit(text=text)
        self._withheld += text
        reasoning = ""
        while not self.has_answered:
            state = self._state
            reasoning += self._advance()
            if self._state is state:
                return ReasoningSplit(reasoning=reasoning)
        return ReasoningSplit(reasoning=reasoning, text=self._take(len(self._withheld)))

    def finish(self) -> ReasoningSplit:
        """Returns what is left at the end of the answer."""
        left, state = self._take(len(self._withheld)), self._state
        if state in (_State.OPENED, _State.REASONING):
            return ReasoningSplit(reasoning=left.rstrip() if state is _State.REASONING else left.strip())
        return ReasoningSplit(text=left)

    def _advance(self) -> str:
        """Reads what it can in the current state. Returns the reasoning in it."""
        match self._state:
            case _State.BEFORE | _State.OPENED:
                self._read_opening()
            case _State.REASONING:
                return self._read_reasoning()
            case _State.CLOSED:
                self._read_space()
            case _State.ANSWER:
                pass
        return ""

    def _read_opening(self) -> None:
        opening, body = self._tags.opening, self._withheld.lstrip()
        while body.startswith(opening):
            body = body[len(opening) :].lstrip()
            self._state = _State.OPENED
        if self._state is _State.OPENED:
            self._withheld = body
        if not opening.startswith(body):
            self._state = _State.REASONING if self._state is _State.OPENED else _State.ANSWER

    def _read_reasoning(self) -> str:
        end = self._withheld.find(self._tags.closing)
        if end < 0:
            num_kept = _num_begun(self._tags.closing, self._withheld)
            body = self._withheld[: len(self._withheld) - num_kept]
            return self._take(len(body.rstrip()))
        reasoning = self._take(end).rstrip()
        self._take(len(self._tags.closing))
        self._state = _State.CLOSED
        return reasoning

    def _read_space(self) -> None:
        tag, body = self._tags.answer, self._withheld
        if self._tags.strips_answer:
            body = body.lstrip()
            while tag and body.startswith(tag):
                body = body.removeprefix(tag).lstrip()
            self._withheld = body
            if tag.startswith(body):  # the tag may follow
                return
        self._state = _State.ANSWER

    def _take(self, num_characters: int) -> str:
        taken, self._withheld = self._withheld[:num_characters], self._withheld[num_characters:]
        return taken


class ReasoningMeter:
    """Counts the tokens of one answer's reasoning, without its tags. The engine and the front end count alike."""

    def __init__(self, tags: ReasoningTags) -> None:
        self._parser = ReasoningParser(tags)
        self._num_tokens = 0
        self._num_closing = 0
        """Tokens since then that may belong to the closing tag."""

    @property
    def is_reasoning(self) -> bool:
        """The reasoning has begun and has not ended."""
        return self._parser.is_reasoning

    @property
    def num_tokens(self) -> int:
        """Tokens of the reasoning so far. Those that may belong to the closing tag count until it is complete."""
        return self._num_tokens + self._num_closing

    def append(self, token: bytes) -> None:
        """Reads the next token."""
        if self._parser.has_answered:
            return
        was_reasoning = self._parser.is_reasoning
        self._parser.feed(token.decode("latin-1"))  # tags are ASCII, and a token may end inside a character
        if not was_reasoning:
            return
        self._num_closing += 1
        if not self._parser.is_reasoning:
            self._num_closing = 0
        elif not self._parser.is_closing:
            self._num_tokens += self._num_closing
            self._num_closing = 0


def _num_begun(tag: str, text: str) -> int:
    """Returns how many characters at the end of a text could begin a tag; less than the whole tag."""
    return next((size for size in range(len(tag) - 1, 0, -1) if text.endswith(tag[:size])), 0)
