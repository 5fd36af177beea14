"""Measures the pace of the engine's steps, and says after which time one that still runs is unusual."""

import math

from glimpse.engine.protocol.messages import StepStats

_MANY = 10.0
"""Times of the usual after which a step is unusual. Long contexts and encoders cost more than the tokens of a step."""


class StepPace:
    """The steps of one engine process."""

    def __init__(self, max_batch_tokens: int) -> None:
        """`max_batch_tokens`: the most that a step computes."""
        self._max_batch_tokens = max_batch_tokens
        self._seconds_per_token = math.inf

    def add(self, stats: StepStats) -> None:
        num_tokens = stats.num_prompt_tokens + stats.num_generated_tokens
        if num_tokens:
            self._seconds_per_token = min(self._seconds_per_token, stats.step_seconds / num_tokens)

    @property
    def unusual_seconds(self) -> float:
        """Many times what the largest step takes; infinite before a step is measured.

        A step of more tokens takes less for each. So none of the largest should take longer than the best pace of any
        step says, however small that was.
        """
        return _MANY * self._max_batch_tokens * self._seconds_per_token
