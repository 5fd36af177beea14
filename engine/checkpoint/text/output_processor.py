"""Turns the token events of one completion into text: detokenizes, matches stop strings, decodes log-probabilities.

Used by the server and by the offline API. Cancelling the request after a stop string is the caller's task.
"""

import math
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import msgspec

from glimpse.engine.checkpoint.text.grounding import Grounding
from glimpse.engine.checkpoint.text.stop_strings import StopMatcher
from glimpse.engine.checkpoint.text.tokenizer import Detokenizer, Tokenizer
from glimpse.engine.protocol.messages import NO_STATS, FinishReason, RequestStats, TokenEvent, TokenLogprobs


class TopToken(NamedTuple):
    """One of the most likely tokens at a position."""

    token_id: int
    text: str
    bytes: bytes
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenText:
    """A decoded token with its log-probability."""

    token_id: int
    text: str
    """The token decoded alone; bytes that are not valid UTF-8 on their own are U+FFFD."""
    bytes: bytes
    logprob: float
    top: tuple[TopToken, ...] = ()
    """The most likely tokens at its position, in descending order."""
    rank: int = 0
    """Rank of a token of a prompt among all tokens; 1 is the most likely."""
    offset: int = 0
    """Where its text begins, in characters from the completion's first one; negative in the prompt, whose special
    tokens count. All tokens of one character have the same."""


def prompt_token_texts(
    tokenizer: Tokenizer, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]
) -> tuple[TokenText, ...]:
    """Returns the decoded tokens of a prompt. The log-probability of the first is NaN: nothing is before it.

    Args:
        token_ids: The prompt, at least one token.
        logprobs: Log-probabilities of all tokens but the first.
    """
    first = TokenLogprobs(logprob=math.nan)
    detokenizer = Detokenizer(tokenizer, hidden_ids=())
    *begins, end = accumulate((len(detokenizer.feed((token_id,))) for token_id in token_ids), initial=0)
    end += len(detokenizer.finish())
    rows = zip(token_ids, (first, *logprobs), (begin - end for begin in begins), strict=True)
    return tuple(_token_text(tokenizer, token_id, own, offset) for token_id, own, offset in rows)


def _token_text(tokenizer: Tokenizer, token_id: int, logprobs: TokenLogprobs, offset: int) -> TokenText:
    def decoded(token_id: int) -> tuple[str, bytes]:
        return tokenizer.token_text(token_id), tokenizer.token_bytes(token_id)

    top = tuple(TopToken(other, *decoded(other), logprob) for other, logprob in logprobs.top)
    text, data = decoded(token_id)
    return TokenText(
        token_id=token_id, text=text, bytes=data, logprob=logprobs.logprob, top=top, rank=logprobs.rank, offset=offset
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallDelta:
    """New output of one tool call."""

    index: int
    id: str | None
    """Set in the call's first delta."""
    name: str | None
    """Set in the call's first delta."""
    arguments: str
    """Text to append to the arguments."""


class Delta(msgspec.Struct, kw_only=True, gc=False):
    """Output that one event adds to a completion. `OutputProcessor` makes it, each later stage fills in its part."""

    index: int = 0
    """Index of the completion: all completions of the first prompt come first, then those of the second, and so on."""
    text: str = ""
    """Without the reasoning and the tool calls, once these are parsed."""
    reasoning: str = ""
    """What the model wrote between its reasoning tags."""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    """At most one delta per tool call."""
    tokens: tuple[TokenText, ...] = ()
    """Tokens with log-probabilities, if requested; a token is included once its first character is released.
    Excludes the token that ended the completion and the tokens of a stop string that is not part of the text."""
    token_ids: Sequence[int] = ()
    """All tokens generated, including those whose text is withheld and the one that ended the completion. The server
    removes them after counting, unless the request asks for them."""
    num_reasoning_tokens: int = 0
    """Tokens of the completion's reasoning so far."""
    finish: FinishReason | None = None
    """Set in the completion's last delta."""
    stop_string: str = ""
    """The stop string that ended the completion. The caller must cancel the request then: the engine knows none."""
    answer: object = None
    """The completion as a message, in its last delta; None unless the request asks for one."""
    answer_error: str = ""
    """Why the completion is not the message that the request asks for, in its last delta: a sentence."""
    stats: RequestStats = NO_STATS
    """Figures of the event."""
    prompt_token_ids: Sequence[int] = ()
    """The completion's prompt, in its first delta; empty unless the request asks for it."""
    groundings: tuple[Grounding, ...] = ()
    """The boxes and points in the completion's text, in its last delta; empty unless the request asks for them."""
    prompt_tokens: tuple[TokenText, ...] = ()
    """All tokens of the completion's prompt with log-probabilities, in its first delta; empty unless the request asks
    for them."""


class OutputProcessor:
    """Processes one completion. Feed it the engine's events up to the first delta with `finish`."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        min_tokens: int = 0,
        logprobs: int | None = None,
        hidden_ids: Collection[int] | None = None,
    ) -> None:
        """
        Args:
            stop: Non-empty stop strings.
            include_stop: The stop string that ends the completion is part of its text.
            min_tokens: A stop string that these first tokens complete does not end the completion.
            logprobs: See `SamplingParams`; None: `Delta.tokens` stays empty.
            hidden_ids: Tokens to leave out of the text. Default: the special tokens.
        """
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, hidden_ids=hidden_ids)
        self._stops = StopMatcher(stop, include=include_stop)
        self._num_early = min_tokens
        """Tokens to come that no stop string ends at."""
        self._logprobs = logprobs
        self._looks_at_each = bool(stop) or logprobs is not None
        """Whether it matters which token brings which text."""
        self._num_decoded = 0
        """Characters decoded so far, including withheld ones."""
        self._num_released = 0
        """Characters released so far."""
        self._withheld: deque[TokenText] = deque()
        """Tokens whose text is withheld."""

    def feed(self, event: TokenEvent) -> Delta:
        """Returns the output that the event adds: whole characters, none of which may belong to a stop string
        that is left out.

        Any `finish` releases the withheld text. A stop string sets `finish` to STOP; tokens after it are dropped.
        """
        if event.finish is None and not self._looks_at_each:  # most events, at a third of the cost
            text = self._detokenizer.feed(event.token_ids)
            return Delta(text=text, token_ids=event.token_ids, stats=event.stats)
        visible = event.token_ids
        if event.finish is not None and event.finish is FinishReason.STOP:  # an enum's members are slow to look up
            visible = visible[:-1]  # without the token that ended it
        text, num_read = self._read(visible, event.logprobs)
        if event.finish is not None and not self._stops.matched:
            rest = self._stops.feed(self._detokenizer.finish(), may_end=self._num_early == 0)
            text += rest + self._stops.finish()
        self._num_released += len(text)
        stopped = bool(self._stops.matched)
        finish = FinishReason.STOP if stopped else event.finish
        return Delta(
            text=text,
            tokens=self._release(release_all=finish is not None and not stopped),
            token_ids=event.token_ids[:num_read] if stopped else event.token_ids,
            finish=finish,
            stop_string=self._stops.matched,
            stats=event.stats,
        )

    def _read(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> tuple[str, int]:
        """Returns the text that these tokens release and how many were read until a stop string was complete."""
        if not self._looks_at_each:
            return self._detokenizer.feed(token_ids), len(token_ids)
        text = ""
        for index, token_id in enumerate(token_ids):
            if self._logprobs is not None:
                self._withheld.append(_token_text(self._tokenizer, token_id, logprobs[index], self._num_decoded))
            new = self._detokenizer.feed((token_id,))
            self._num_decoded += len(new)
            text += self._stops.feed(new, may_end=self._num_early == 0)
            self._num_early = max(0, self._num_early - 1)
            if self._stops.matched:
                return text, index + 1
        return text, len(token_ids)

    def _release(self, *, release_all: bool) -> tuple[TokenText, ...]:
        """Removes and returns the withheld tokens of whose text at least one character was released."""
        released: list[TokenText] = []
        while self._withheld and (release_all or self._withheld[0].offset < self._num_released):
            released.append(self._withheld.popleft())
        return tuple(released)
