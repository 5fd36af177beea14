"""Remembers which requests were in flight when the engine died, and refuses one that it probably died of."""

import hashlib
import logging
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from glimpse.engine.errors import EngineError, EngineErrorCode
from glimpse.engine.protocol.messages import FinishReason, MediaInput, TokenEvent

REFUSAL_SECONDS = 300.0
"""How long a request is refused of which the engine probably died. It may be innocent."""
_MAX_REFUSED = 1024
"""Requests that are remembered after they were refused."""

_log = logging.getLogger(__name__)


def prompt_digest(token_ids: Sequence[int], media: Iterable[MediaInput]) -> bytes:
    """Returns what identifies a prompt, whoever sends it."""
    digest = hashlib.blake2b(array("q", token_ids), digest_size=16)
    for each in media:
        digest.update(each.span.key)
    return digest.digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A prompt that is given to the engine."""

    request_ids: Sequence[str]
    """Ids of the prompt's answers."""
    digest: bytes
    """Result of `prompt_digest`; empty: the prompt is never suspected."""
    flow: str
    """One value for all prompts of a client's request."""


class Suspects:
    """What the engine has in flight, and which of it is suspected.

    A prompt that was in flight at two deaths in a row, without an end in between, is a suspect. The only suspect is
    refused for `REFUSAL_SECONDS`. Of several, one runs at a time: the next death shows which one it is, and one that
    ends is none any more.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns the time in seconds."""
        self._clock = clock
        self.in_flight: dict[str, Work] = {}
        """Request id → its prompt, until the engine has ended it."""
        self._at_last_death = set[bytes]()
        self._suspects = set[bytes]()
        self._suspected_until = 0.0
        self._refused: dict[bytes, float] = {}
        """Digest → when it was or will be served again. Its next death counts at once."""

    def refusal(self, work: Work) -> EngineError | None:
        """Returns why a prompt may not be given to the engine now; None if it may."""
        now = self._clock()
        if self._refused.get(work.digest, now) > now:
            return EngineError(
                EngineErrorCode.SUSPECTED,
                "The engine died repeatedly while it had this prompt, which is refused for"
                f" {self._refused[work.digest] - now:.0f} s more, in case that it is the cause.",
            )
        if work.digest in self._suspects and now < self._suspected_until and self._has_suspect_beside(work):
            return EngineError(
                EngineErrorCode.OVERLOADED,
                "The engine died repeatedly while it had this prompt and others, which are therefore computed one at a"
                " time for now. Retry later.",
            )
        return None

    def begin(self, work: Work) -> None:
        """Notes that a prompt is given to the engine."""
        self.in_flight |= dict.fromkeys(work.request_ids, work)

    def end(self, event: TokenEvent) -> None:
        """Notes the last event of an answer. One that was computed, even in part, acquits its prompt."""
        work = self.in_flight.pop(event.request_id, None)
        if work is None:
            return
        if event.finish in (FinishReason.STOP, FinishReason.LENGTH) or event.stats.num_computed_prompt_tokens:
            self._at_last_death.discard(work.digest)
            self._suspects.discard(work.digest)
            self._refused.pop(work.digest, None)

    def died(self, *, by_itself: bool = True) -> None:
        """Notes that the engine died, with all that was in flight; nothing of it is suspected if others killed it."""
        if not by_itself:
            self.in_flight.clear()
            return
        present = {work.digest: work.flow for work in self.in_flight.values() if work.digest}
        known = present.keys() & (self._suspects | self._refused.keys())
        suspects = known or present.keys() & self._at_last_death
        self._at_last_death, self._suspects = set(present), suspects
        self._suspected_until = self._clock() + REFUSAL_SECONDS
        self.in_flight.clear()
        if len({present[each] for each in suspects}) == 1:
            self._refuse(suspects)

    def _refuse(self, digests: Iterable[bytes]) -> None:
        """Refuses prompts of one request."""
        self._suspects = set()
        for digest in digests:
            _log.warning(
                "the prompt %s is refused for %g s: the engine died repeatedly while it had it",
                digest.hex(),
                REFUSAL_SECONDS,
            )
            self._refused[digest] = self._suspected_until
        for oldest in list(self._refused)[:-_MAX_REFUSED]:
            del self._refused[oldest]

    def _has_suspect_beside(self, work: Work) -> bool:
        return any(each.digest in self._suspects and each.flow != work.flow for each in self.in_flight.values())
