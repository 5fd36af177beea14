"""What one request got back, and how it ended: every request must end exactly once, and say how."""

from dataclasses import dataclass, field
from enum import StrEnum


class Outcome(StrEnum):
    """The ending of a request."""

    OK = "ok"
    REFUSED = "refused"
    """An error with a code, before or during the answer."""
    LOST = "lost"
    """The answer ended in silence: without a finish reason, an error or a status."""
    BROKEN = "broken"
    """The connection broke: the client's library reports it, the server said nothing."""
    TWICE = "twice"
    """Two endings, or something after the ending, or a chunk that was sent twice."""
    HUNG = "hung"
    """No ending in time."""
    WRONG = "wrong"
    """Another answer than the one that was given when the server was quiet."""
    LEFT = "left"
    """The client left on purpose."""
    UNFINISHED = "unfinished"
    """No request: an attack that failed itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How a request ended."""

    outcome: Outcome
    code: str = ""
    """The code of the error, for `REFUSED`."""
    detail: str = ""
    """What was seen, for a person."""


@dataclass(slots=True, kw_only=True)
class Transcript:
    """The events of one response, in order. Streams and single answers use the same one."""

    needs_done: bool = True
    """Whether a complete answer ends with `[DONE]` or `message_stop`: true for SSE."""
    num_choices: int = 1
    pieces: list[str] = field(default_factory=list[str])
    """The text of the first choice, as it came."""
    _finished: set[int] = field(default_factory=set[int])
    _errors: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Codes and messages."""
    _num_done: int = 0
    _surplus: str = ""
    _closed: str = ""
    _malformed: str = ""
    _hung: bool = False
    _left: bool = False

    def text(self, delta: str, index: int = 0) -> None:
        """Adds text to a choice."""
        if index in self._finished or self._ended:
            self._surplus = f"text after the end: {delta[:40]!r}"
        if index == 0 and delta:
            self.pieces.append(delta)

    def finish(self, index: int = 0) -> None:
        """Records a finish reason."""
        if index in self._finished or self._ended:
            self._surplus = f"a second finish reason of choice {index}"
        self._finished.add(index)

    def done(self) -> None:
        """Records `[DONE]`."""
        if self._ended:
            self._surplus = "[DONE] after the end"
        self._num_done += 1

    def error(self, code: str, message: str = "") -> None:
        """Records an error: an HTTP error, an event in the stream, or a gRPC status."""
        if self._ended:
            self._surplus = f"an error after the end: {code}"
        self._errors.append((code, message))

    def broke(self, reason: str) -> None:
        """Records that the connection broke."""
        self._closed = reason or "connection lost"

    def malformed(self, reason: str) -> None:
        """Records an answer that the client cannot read."""
        self._malformed = reason

    def hung(self) -> None:
        """Records that the client gave up waiting."""
        self._hung = True

    def left(self) -> None:
        """Records that the client left."""
        self._left = True

    def verdict(self, expected: str | None = None) -> Verdict:
        """Judges the response, which has ended. `expected`: the right text of the first choice; None accepts any."""
        if self._surplus:
            return Verdict(outcome=Outcome.TWICE, detail=self._surplus)
        if self._malformed:
            return Verdict(outcome=Outcome.WRONG, detail=self._malformed)
        if self._errors:
            code, message = self._errors[0]
            return Verdict(outcome=Outcome.REFUSED, code=code, detail=message)
        if self._hung:
            return Verdict(outcome=Outcome.HUNG, detail=f"{len(self.pieces)} pieces had come")
        if self._left:
            return Verdict(outcome=Outcome.LEFT)
        if self._is_complete:
            return self._compare(expected)
        if self._closed:
            return Verdict(outcome=Outcome.BROKEN, detail=self._closed)
        return Verdict(outcome=Outcome.LOST, detail=self._missing())

    @property
    def _ended(self) -> bool:
        return bool(self._num_done or self._errors)

    @property
    def _is_complete(self) -> bool:
        return len(self._finished) >= self.num_choices and (not self.needs_done or self._num_done == 1)

    def _missing(self) -> str:
        done = "" if not self.needs_done or self._num_done else ", no [DONE]"
        return f"{len(self._finished)} of {self.num_choices} finish reasons{done}, no error"

    def _compare(self, expected: str | None) -> Verdict:
        text = "".join(self.pieces)
        if expected is None or text == expected:
            return Verdict(outcome=Outcome.OK)
        outcome = Outcome.TWICE if self._has_doubled_piece(expected) else Outcome.WRONG
        return Verdict(outcome=outcome, detail=f"expected {expected!r}, got {text!r}")

    def _has_doubled_piece(self, expected: str) -> bool:
        """Whether the text is right once a piece that equals the one before it is left out."""
        return any(
            here == before and "".join(self.pieces[:place] + self.pieces[place + 1 :]) == expected
            for place, (before, here) in enumerate(zip(self.pieces, self.pieces[1:], strict=False), start=1)
        )
