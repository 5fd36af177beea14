"""Admits requests that need the engine or much work before it: by the expected wait, and a few at a time.

A request that would wait too long is refused before anything of it is parsed. The others are parsed, rendered and
tokenized a few at a time, clients in turn, so that the event loop always has time for cheap calls.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from math import ceil

from glimpse.engine.errors import overloaded
from glimpse.engine.protocol.messages import RequestStats, StepStats
from glimpse.media.cache.fair_share import FairPlaces
from glimpse.server.call.deadline import within
from glimpse.server.call.offload import turns
from glimpse.server.call.wait_estimator import PromptSize, WaitEstimator
from glimpse.server.telemetry.timings import FirstTokenTime

MAX_PREPARED_AT_ONCE = 4
"""Requests of one client that are parsed and tokenized at a time. More would only make each other slower: most of it is
Python."""
_COMPUTING = frozenset(
    (
        "CreateChatCompletion",
        "StreamChatCompletion",
        "CreateMessage",
        "StreamMessage",
        "CreateResponse",
        "StreamResponse",
        "CreateCompletion",
        "StreamCompletion",
        "CreateEmbeddings",
        "Rerank",
        "Score",
    )
)
"""Methods that need the engine."""
_PREPARED_ONLY = frozenset(
    (
        "CountTokens",
        "CountMessageTokens",
        "CountInputTokens",
        "CreateBatch",
        "Tokenize",
        "Detokenize",
        "LoadAdapter",
        "LoadLoraAdapter",
        "UnloadAdapter",
        "UnloadLoraAdapter",
    )
)


class Admission:
    """The requests of one event loop that wait or are being prepared."""

    def __init__(self, *, max_queue_seconds: float = float("inf"), clock: Callable[[], float] = time.monotonic) -> None:
        """Requests whose expected wait is longer than `max_queue_seconds` are refused."""
        self.estimator = WaitEstimator()
        self.step_seconds = 0.0
        """The length of the engine's last step; 0 if nothing runs."""
        self.places = FairPlaces(MAX_PREPARED_AT_ONCE)
        self._max_queue_seconds = max_queue_seconds
        self._clock = clock
        self._computing_since = 0.0  # or earlier, if nothing waits

    def background_ticket(self, client: str) -> "Ticket":
        """Returns a ticket for a call that is not urgent: it takes its turn to be prepared, and delays nobody else."""
        return Ticket(self, client, None, needs_engine=False, waits=True, is_background=True)

    def ticket(self, method: str = "", client: str = "", deadline: float | None = None) -> "Ticket":
        """Returns a ticket for a call; `close` must follow. Methods that do little wait for nothing."""
        name = method.rpartition("/")[2]
        needs_engine = name in _COMPUTING
        return Ticket(self, client, deadline, needs_engine=needs_engine, waits=needs_engine or name in _PREPARED_ONLY)

    @property
    def now(self) -> float:
        """Time in seconds."""
        return self._clock()

    def check(self, client: str) -> None:
        """Raises EngineError (OVERLOADED) if a new request of this client would wait too long."""
        seconds = self.estimator.wait_seconds(client, computing_seconds=self.now - self._computing_since)
        if seconds > self._max_queue_seconds:
            why = (
                f"the request would wait for about {ceil(seconds)} s behind others of the same client, longer than "
                f"{self._max_queue_seconds:g} s (the server's --max-queue-seconds)"
            )
            raise overloaded(why, seconds - self._max_queue_seconds)

    def engine_stepped(self, stats: StepStats) -> None:
        """Takes over what the engine tells after a step."""
        self.step_seconds = stats.step_seconds if stats.num_running else 0.0
        self._computing_since = self.now
        self.estimator.engine_stepped(stats)

    def add_waiting(self, client: str, num_tokens: int) -> None:
        """Counts work that waits, or with a negative number, that waits no longer."""
        if not self.estimator.waiting_tokens:
            self._computing_since = self.now
        self.estimator.add_waiting(client, num_tokens)


class Ticket:
    """What one request holds: a place among those being prepared, then work that waits for the engine."""

    def __init__(
        self,
        admission: Admission,
        client: str,
        deadline: float | None,
        *,
        needs_engine: bool,
        waits: bool,
        is_background: bool = False,
    ) -> None:
        """`deadline` is in the event loop's time; without `waits` the request is prepared at once; what is in the
        background counts in no estimate."""
        self._admission = admission
        self._client = client
        self._deadline = deadline
        self._needs_engine = needs_engine
        self._waits = waits
        self._is_background = is_background
        self._is_preparing = False
        self._num_waiting_tokens = 0
        self.arrived = admission.now
        """In seconds of the admission's clock."""
        self._submitted: float | None = None
        self._size: PromptSize | None = None
        self._step_seconds = 0.0  # when it was submitted

    async def arrive(self) -> None:
        """Waits for the client's turn of the event loop, before anything of the request is read; or its deadline."""
        if self._waits:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._deadline):
                    await turns.next(self._client)

    async def begin(self) -> None:
        """Waits for the request's turn to be prepared. Idempotent.

        Raises:
            EngineError: OVERLOADED, the expected wait is too long.
            DeadlineExceededError: the deadline passed first.
        """
        if self._is_preparing or not self._waits:
            return
        if self._needs_engine:
            self._admission.check(self._client)
            self.expect(num_prompt_tokens=0, num_completions=1, max_tokens=1 << 30)
        async with within(self._deadline):
            await self._admission.places.acquire(self._client)
            self._is_preparing = True

    def end_preparing(self) -> None:
        """Lets the next request be prepared. Idempotent."""
        if self._is_preparing:
            self._is_preparing = False
            self._admission.places.release(self._client)

    def expect(self, *, num_prompt_tokens: int, num_completions: int, max_tokens: int) -> None:
        """Says how much work the request brings, once that is known."""
        expected = self._admission.estimator.expected_tokens(
            num_prompt_tokens=num_prompt_tokens, num_completions=num_completions, max_tokens=max_tokens
        )
        self._set_waiting(round(expected))

    def submit(self, *, num_tokens: int, num_media_tokens: int) -> None:
        """Notes that a prompt of so many tokens, those of media among them, goes to the engine."""
        if self._is_background:
            return
        self._submitted, self._step_seconds = self._admission.now, self._admission.step_seconds
        self._size = PromptSize(num_tokens=num_tokens, num_media_tokens=num_media_tokens)

    def observe_first_token(self, stats: RequestStats, *, had_media: bool) -> None:
        """Records how long the first token of the prompt took. Idempotent.

        Args:
            stats: What the engine measured.
            had_media: The prompt's media, if it has any, were loaded before.
        """
        if self._submitted is None or self._size is None:
            return
        submitted, self._submitted = self._submitted, None
        estimator = self._admission.estimator
        if had_media:
            estimator.observe_preparation(self._size, submitted - self.arrived)
        delivery_seconds = self._admission.now - submitted - stats.first_token_seconds
        estimator.observe_delivery(delivery_seconds, step_seconds=self._step_seconds)

    def expected_first_token(
        self, stats: RequestStats, *, num_tokens: int, num_media_tokens: int
    ) -> FirstTokenTime | None:
        """Returns when the first token of a request that arrives now is expected; None if it is unknown.

        Args:
            stats: What the engine expects of its prompt.
            num_tokens: Tokens of the prompt.
            num_media_tokens: tokens among them that stand for media.
        """
        size = PromptSize(num_tokens=num_tokens, num_media_tokens=num_media_tokens)
        return self._admission.estimator.first_token(size, stats, step_seconds=self._admission.step_seconds)

    def end_waiting(self) -> None:
        """Notes that the first tokens have come. Idempotent."""
        self._set_waiting(0)

    def close(self) -> None:
        """The request has ended. Idempotent."""
        self.end_preparing()
        self.end_waiting()

    def _set_waiting(self, num_tokens: int) -> None:
        if num_tokens != self._num_waiting_tokens and not self._is_background:
            self._admission.add_waiting(self._client, num_tokens - self._num_waiting_tokens)
            self._num_waiting_tokens = num_tokens
