"""Estimates how long a new request would wait for the engine. Plain arithmetic: times are passed in.

Work is counted in tokens: those of the prompt and those that are expected to be generated. Clients share the engine
equally, so a client waits for its own waiting work, at its share of the rate that the engine was measured to have.
"""

import math
from collections import Counter
from collections.abc import Mapping

_WINDOW_SECONDS = 10.0
"""Older measurements of the rate count less and less."""
_MEAN_SHARE = 0.05
"""Weight of a request that has ended in the mean over requests."""
_INITIAL_COMPLETION_TOKENS = 128
"""Tokens of a completion, until some have ended."""


class WaitEstimator:
    """The waiting work of each client, and the rate at which the engine works while requests wait."""

    def __init__(self) -> None:
        self._waiting_tokens = Counter[str]()  # by client; no zeros
        self._others: Mapping[str, int] = {}
        self._tokens = 0.0  # computed while requests waited; recent ones count more
        self._seconds = 0.0
        self._completion_tokens = float(_INITIAL_COMPLETION_TOKENS)

    @property
    def tokens_per_second(self) -> float | None:
        """None until it has been measured."""
        return self._tokens / self._seconds if self._seconds and self._tokens else None

    @property
    def waiting_tokens(self) -> Mapping[str, int]:
        """The work of this process that waits, by client."""
        return self._waiting_tokens

    def set_others(self, waiting_tokens: Mapping[str, int]) -> None:
        """Says what waits in other processes that use the same engine, by client."""
        self._others = waiting_tokens

    def expected_tokens(self, *, num_prompt_tokens: int, num_completions: int, max_tokens: int) -> float:
        """Returns the work of a request: its prompt, and completions as long as recent ones."""
        return num_prompt_tokens + num_completions * min(max_tokens, self._completion_tokens)

    def wait_seconds(self, client: str) -> float:
        """Returns how long the next request of a client would wait; 0 while the rate is unknown."""
        rate = self.tokens_per_second
        num_tokens = self._waiting_tokens[client] + self._others.get(client, 0)
        if rate is None or not num_tokens:
            return 0.0
        return num_tokens * len(self._waiting_tokens.keys() | self._others.keys()) / rate

    def add_waiting(self, client: str, num_tokens: float) -> None:
        """Counts work that waits, or with a negative number, that waits no longer."""
        self._waiting_tokens[client] += round(num_tokens)
        if self._waiting_tokens[client] <= 0:
            del self._waiting_tokens[client]

    def observe_rate(self, *, num_tokens: int, seconds: float) -> None:
        """Records how much was computed during an interval in which requests waited."""
        fading = math.exp(-seconds / _WINDOW_SECONDS)
        self._tokens = self._tokens * fading + num_tokens
        self._seconds = self._seconds * fading + seconds

    def observe_completion(self, num_tokens: int) -> None:
        """Records the length of a completion that has ended."""
        self._completion_tokens += _MEAN_SHARE * (num_tokens - self._completion_tokens)
