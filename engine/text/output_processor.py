"""One answer's token events to text deltas: whole characters, no stop texts, log-probabilities spelt out.

Knows the events and the tokenizer; not what a door makes of the deltas, nor how a request is cancelled.
"""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from glimpse.engine.protocol import FinishReason, TokenEvent, TokenLogprobs
from glimpse.engine.text.detokenizer import Detokenizer
from glimpse.engine.text.stop_strings import StopMatcher
from glimpse.engine.text.tokenizer import Tokenizer


class TopToken(NamedTuple):
    """One of the most likely tokens at a place."""

    token_id: int
    text: str
    bytes: bytes
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenText:
    """A token with its log-probability."""

    token_id: int
    text: str
    """The token alone; bytes that are not UTF-8 by themselves appear as U+FFFD."""
    bytes: bytes
    logprob: float
    top: tuple[TopToken, ...] = ()
    """The most likely tokens at its place, most likely first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """What an event adds to an answer."""

    text: str = ""
    tokens: tuple[TokenText, ...] = ()
    """Tokens whose text has begun to come out, where log-probabilities were asked for. The token that ended the answer
    and those of a stop text are not among them."""
    num_tokens: int = 0
    """Tokens generated, those whose text is held back and the one that ended the answer included."""
    finish: FinishReason | None = None
    stopped_by_text: bool = False
    """A stop text ended the answer: the engine does not know of it, so the request is to be cancelled."""


class OutputProcessor:
    """The text of one answer. Feed it the events up to the first delta with `finish`."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        logprobs: int | None = None,
        hidden_ids: Collection[int] | None = None,
    ) -> None:
        """
        Args:
            tokenizer: The checkpoint's.
            stop: Texts that end the answer, of at least one character.
            logprobs: As in `SamplingParams`: None leaves `TextDelta.tokens` empty.
            hidden_ids: Tokens without text. Default: the special ones.
        """
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, hidden_ids=hidden_ids)
        self._stops = StopMatcher(stop)
        self._logprobs = logprobs
        self._num_decoded = 0
        """Characters of the answer so far, those held back included."""
        self._num_out = 0
        """Characters of the answer that were let out."""
        self._waiting: deque[tuple[int, TokenText]] = deque()
        """Tokens whose text is held back, each with the number of characters before it."""

    def feed(self, event: TokenEvent) -> TextDelta:
        """What the event adds: whole characters, and none that may belong to a stop text.

        Any `finish` lets out what was held back. A stop text makes `finish` STOP; tokens after it are dropped.
        """
        ended_by_token = event.finish is FinishReason.STOP
        shown = event.token_ids[:-1] if ended_by_token else event.token_ids
        text, num_read = self._read(shown, event.logprobs)
        if event.finish is not None and not self._stops.matched:
            text += self._stops.feed(self._detokenizer.finish()) + self._stops.finish()
        self._num_out += len(text)
        stopped = self._stops.matched
        finish = FinishReason.STOP if stopped else event.finish
        return TextDelta(
            text=text,
            tokens=self._release(everything=finish is not None and not stopped),
            num_tokens=num_read if stopped else len(event.token_ids),
            finish=finish,
            stopped_by_text=stopped,
        )

    def _read(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> tuple[str, int]:
        """The text that these tokens let out, and how many of them were read until a stop text was complete."""
        text = ""
        for index, token_id in enumerate(token_ids):
            if self._logprobs is not None:
                self._waiting.append((self._num_decoded, self._describe(token_id, logprobs[index])))
            piece = self._detokenizer.feed((token_id,))
            self._num_decoded += len(piece)
            text += self._stops.feed(piece)
            if self._stops.matched:
                return text, index + 1
        return text, len(token_ids)

    def _release(self, *, everything: bool) -> tuple[TokenText, ...]:
        """Takes from the waiting tokens those whose text has begun to come out."""
        released: list[TokenText] = []
        while self._waiting and (everything or self._waiting[0][0] < self._num_out):
            released.append(self._waiting.popleft()[1])
        return tuple(released)

    def _describe(self, token_id: int, logprobs: TokenLogprobs) -> TokenText:
        top = tuple(TopToken(other, *self._spell(other), logprob) for other, logprob in logprobs.top)
        text, data = self._spell(token_id)
        return TokenText(token_id=token_id, text=text, bytes=data, logprob=logprobs.logprob, top=top)

    def _spell(self, token_id: int) -> tuple[str, bytes]:
        return self._tokenizer.token_text(token_id), self._tokenizer.token_bytes(token_id)
