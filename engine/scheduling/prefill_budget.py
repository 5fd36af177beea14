"""How many prompt tokens a step may take while other sequences decode, so that decoding does not slow down too much.

Pure arithmetic over the work and the durations of recent steps. The expected duration of a step is that of a step that
only decodes, plus what each prompt token and each encoded medium adds.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

NUM_FREE_TOKENS = 16
"""Prompt tokens that a decoding step may take in any case: it reads all weights anyway, so they cost little. A step
with no more than these therefore still measures decoding, and a prompt never stops entirely."""
NUM_UNTRIED_TOKENS = 64
"""Prompt tokens in a decoding step until their cost has been measured."""
DEFAULT_MEDIA_WEIGHT = 2.0
"""Cost of encoding one placeholder token, in prompt tokens, until it has been measured."""
WINDOW = 8
"""Number of recent steps of each kind that count: enough for a median to ignore a single delayed step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """What a step computes."""

    num_decodes: int
    """Sequences that decode: each has one token in the step."""
    num_prompt_tokens: int
    """All other tokens."""
    num_media_tokens: int
    """Placeholder tokens of the media that are encoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cost:
    """What a number of tokens added to the duration of a step."""

    num_tokens: int
    seconds: float


class PrefillBudget:
    """Estimates costs from recent steps and derives the budget."""

    def __init__(self, *, max_slowdown: float) -> None:
        """
        Args:
            max_slowdown: How long a step with decodes may take, as a multiple of a step that only decodes; at least 1.
        """
        self._max_slowdown = max_slowdown
        self._decode_seconds: deque[float] = deque(maxlen=WINDOW)
        self._prompt_costs: deque[_Cost] = deque(maxlen=WINDOW)
        self._media_costs: deque[_Cost] = deque(maxlen=WINDOW)

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens that a step with decodes may take, media converted into them; at least `NUM_FREE_TOKENS`."""
        # A cost is only trusted for up to twice as many tokens as were measured: past some number it rises.
        most_tried = max((cost.num_tokens for cost in self._prompt_costs), default=0)
        bound = max(NUM_UNTRIED_TOKENS, 2 * most_tried)
        spare_seconds = (self._max_slowdown - 1) * self._expected_decode_seconds
        if spare_seconds < bound * self._seconds_per_prompt_token:
            bound = int(spare_seconds / self._seconds_per_prompt_token)
        return max(NUM_FREE_TOKENS, bound)

    @property
    def media_weight(self) -> float:
        """Cost of encoding one placeholder token, in prompt tokens."""
        prompt, media = self._seconds_per_prompt_token, _seconds_per_token(self._media_costs)
        return media / prompt if prompt and media else DEFAULT_MEDIA_WEIGHT

    def observe(self, work: StepWork, seconds: float, *, decode_seconds: float | None = None) -> None:
        """Records the duration of a step. `decode_seconds`: what its decodes take, if they are fewer than usual."""
        if decode_seconds is None:
            decode_seconds = self._expected_decode_seconds
        added_seconds = max(0.0, seconds - decode_seconds)
        if work.num_media_tokens:
            added_seconds -= work.num_prompt_tokens * self._seconds_per_prompt_token
            self._media_costs.append(_Cost(num_tokens=work.num_media_tokens, seconds=max(0.0, added_seconds)))
        elif work.num_prompt_tokens > NUM_FREE_TOKENS:
            self._prompt_costs.append(_Cost(num_tokens=work.num_prompt_tokens, seconds=added_seconds))
        elif work.num_decodes:
            self._decode_seconds.append(seconds)

    @property
    def _expected_decode_seconds(self) -> float:
        return median(self._decode_seconds) if self._decode_seconds else 0.0

    @property
    def _seconds_per_prompt_token(self) -> float:
        return _seconds_per_token(self._prompt_costs)


def _seconds_per_token(costs: Iterable[_Cost]) -> float:
    num_tokens = sum(cost.num_tokens for cost in costs)
    return sum(cost.seconds for cost in costs) / num_tokens if num_tokens else 0.0
