"""Estimates how long a new request would wait for the engine, and for its first token. Plain arithmetic: times are
passed in.

Clients share the engine equally. So a request waits for what its own client has before it, and for as much of each
other client's, if there is that much.

Waiting work is counted in tokens: those of the prompt and those that are expected to be generated. How long they take,
how long they wait for a place before, and the time to a first token, the engine foresees by planning its steps. To the
last come the ways to it and back, which are learnt from recent requests.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from glimpse.engine.protocol.messages import INITIAL_ANSWER_TOKENS, RequestStats, StepStats
from glimpse.engine.protocol.time_fit import TimeFit
from glimpse.server.telemetry.timings import FirstTokenTime

_NUM_RECENT = 16
"""Requests from which the times outside of the engine are learnt: they change with the load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSize:
    """What a prompt is made of."""

    num_tokens: int
    num_media_tokens: int
    """Tokens among them that stand for media."""

    @property
    def units(self) -> tuple[float, ...]:
        """What the time to prepare it is a sum over."""
        return (1, self.num_tokens, self.num_media_tokens, self.num_media_tokens > 0)


class WaitEstimator:
    """The waiting work of each client, and what recent requests took."""

    def __init__(self) -> None:
        self._waiting_tokens = Counter[str]()  # by client; no zeros
        self._others: Mapping[str, int] = {}
        self._place_seconds = 0.0  # until the first of what waits has a place
        self._token_seconds = 0.0  # of what waits; 0: unknown
        self._answer_tokens = float(INITIAL_ANSWER_TOKENS)
        self._preparation = TimeFit(4, window=_NUM_RECENT)
        self._delivery = TimeFit(2, window=_NUM_RECENT)

    @property
    def waiting_tokens(self) -> Mapping[str, int]:
        """The work of this process that waits, by client."""
        return self._waiting_tokens

    def set_others(self, waiting_tokens: Mapping[str, int]) -> None:
        """Says what waits in other processes that use the same engine, by client."""
        self._others = waiting_tokens

    def expected_tokens(self, *, num_prompt_tokens: int, num_completions: int, max_tokens: int) -> float:
        """Returns the work of a request: its prompt, and completions as long as recent ones."""
        return num_prompt_tokens + num_completions * min(max_tokens, self._answer_tokens)

    def wait_seconds(self, client: str, *, computing_seconds: float = 0.0) -> float:
        """Returns how long the next request of a client would wait; 0 before something waited.

        `computing_seconds`: since the engine's last step, or since something waits if that is less.
        """
        waiting = self._waiting_tokens + Counter(self._others) if self._others else self._waiting_tokens
        work = _work_before(waiting, client)
        if not self._token_seconds or not work:
            return 0.0
        return max(self._place_seconds + work * self._token_seconds - computing_seconds, 0.0)

    def add_waiting(self, client: str, num_tokens: float) -> None:
        """Counts work that waits, or with a negative number, that waits no longer."""
        self._waiting_tokens[client] += round(num_tokens)
        if self._waiting_tokens[client] <= 0:
            del self._waiting_tokens[client]

    def engine_stepped(self, stats: StepStats) -> None:
        """Takes over what the engine expects. While nothing waits, tokens are expected to take what they did last."""
        self._answer_tokens = stats.answer_tokens
        self._place_seconds = stats.place_seconds
        self._token_seconds = stats.waiting_token_seconds or self._token_seconds

    def observe_preparation(self, size: PromptSize, seconds: float) -> None:
        """Records how long a request, whose media were loaded, took until its prompt could go to the engine."""
        self._preparation.observe(size.units, seconds, group="media" if size.num_media_tokens else "text")

    def observe_delivery(self, seconds: float, *, step_seconds: float) -> None:
        """Records how long a prompt took to the engine and its first token from there, beside steps of this length."""
        self._delivery.observe((1, step_seconds), seconds)

    def first_token(self, size: PromptSize, engine: RequestStats, *, step_seconds: float) -> FirstTokenTime | None:
        """Returns when the first token of a request is expected; None before one like it was measured.

        Args:
            size: The size of its prompt.
            engine: What the engine expects.
            step_seconds: The length of the engine's steps; 0 if it has nothing to do.
        """
        if not engine.first_token_seconds:
            return None
        computing = engine.first_token_seconds - engine.queue_seconds - engine.encode_seconds
        return FirstTokenTime(
            preparation_seconds=self._preparation.seconds(size.units) or 0.0,
            queue_seconds=engine.queue_seconds,
            encode_seconds=engine.encode_seconds,
            prefill_seconds=computing + (self._delivery.seconds((1, step_seconds)) or 0.0),
        )


def _work_before(waiting: Mapping[str, float], client: str) -> float:
    """Returns the work that is done before a client's next request is."""
    work = waiting.get(client, 0)
    return sum(min(work, other) for other in waiting.values()) if work else 0
