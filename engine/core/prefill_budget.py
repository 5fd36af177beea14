"""How many prompt tokens a step may take while other sequences decode, so that decoding does not slow down too much.

Pure arithmetic over the work and the durations of recent steps. The expected duration of a step is that of a step that
only decodes, plus what each prompt token and each encoded medium adds, plus what the first prompt token adds: on a GPU
a step that only decodes is replayed, and any other one launches its kernels one by one.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

NUM_FREE_TOKENS = 16
"""Prompt tokens that a decoding step may take in any case on a CPU: it reads all weights anyway, so they cost little. A
step with no more than these therefore still measures decoding, and a prompt never stops entirely."""
NUM_GPU_TOKENS = 512
"""Prompt tokens on a GPU, where a step with one prompt token takes about as long as one with a few hundred: fewer would
repeat the cost of its launches. None of them measures decoding."""
SAMPLE_INTERVAL = 32
"""After so many steps with prompt tokens on a GPU, one only decodes, to measure that."""
NUM_BRIEF_TOKENS = 128
"""Prompt tokens of a step that is to be short: enough to compute nearly as fast as in a long one."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _CostLine:
    """What prompt tokens add to the duration of a step: a line."""

    fixed_seconds: float = 0.0
    """Added by any number of them."""
    seconds_per_token: float = 0.0

    def num_tokens_within(self, seconds: float, bound: int) -> int:
        """Returns how many tokens take no more than `seconds`, at most `bound`."""
        spare_seconds = max(0.0, seconds - self.fixed_seconds)
        if spare_seconds < bound * self.seconds_per_token:
            return int(spare_seconds / self.seconds_per_token)
        return bound


class PrefillBudget:
    """Estimates costs from recent steps and derives the budget."""

    def __init__(self, *, max_slowdown: float, uses_gpu: bool = False) -> None:
        """
        Args:
            max_slowdown: How long a step with decodes may take, as a multiple of a step that only decodes; at least 1.
        """
        self._max_slowdown = max_slowdown
        self._min_tokens = NUM_GPU_TOKENS if uses_gpu else NUM_FREE_TOKENS
        self._num_free_tokens = 0 if uses_gpu else NUM_FREE_TOKENS
        self._num_since_decode = SAMPLE_INTERVAL  # decoding steps since one that measured decoding
        self._decode_seconds: deque[float] = deque(maxlen=WINDOW)
        self._prompt_costs: deque[_Cost] = deque(maxlen=WINDOW)
        self._prompt_cost = _CostLine()
        self._media_costs: deque[_Cost] = deque(maxlen=WINDOW)

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens that a step with decodes may take, media converted into them.

        At least `NUM_FREE_TOKENS` on a CPU. On a GPU at least `NUM_GPU_TOKENS`, or 0 in a step that measures decoding.
        """
        if not self._num_free_tokens and self._num_since_decode >= SAMPLE_INTERVAL:
            return 0
        # A cost is only trusted for up to twice as many tokens as were measured: past some number it rises.
        most_tried = max((cost.num_tokens for cost in self._prompt_costs), default=0)
        bound = max(NUM_UNTRIED_TOKENS, 2 * most_tried)
        spare_seconds = (self._max_slowdown - 1) * self._expected_decode_seconds
        return max(self._min_tokens, self._prompt_cost.num_tokens_within(spare_seconds, bound))

    @property
    def num_brief_tokens(self) -> int:
        """Prompt tokens that a step without decodes may take if it is to be short."""
        return max(self._min_tokens, NUM_BRIEF_TOKENS)

    @property
    def media_weight(self) -> float:
        """Cost of encoding one placeholder token, in prompt tokens."""
        prompt, media = self._prompt_cost.seconds_per_token, _seconds_per_token(self._media_costs)
        return media / prompt if prompt and media else DEFAULT_MEDIA_WEIGHT

    def observe(self, work: StepWork, seconds: float, *, decode_seconds: float | None = None) -> None:
        """Records the duration of a step. `decode_seconds`: what its decodes take, if they are fewer than usual."""
        if decode_seconds is None:
            decode_seconds = self._expected_decode_seconds
        added_seconds = max(0.0, seconds - decode_seconds)
        self._num_since_decode += work.num_decodes > 0
        if work.num_media_tokens:
            line = self._prompt_cost
            added_seconds -= line.fixed_seconds + work.num_prompt_tokens * line.seconds_per_token
            self._media_costs.append(_Cost(num_tokens=work.num_media_tokens, seconds=max(0.0, added_seconds)))
        elif work.num_prompt_tokens > self._num_free_tokens:
            self._prompt_costs.append(_Cost(num_tokens=work.num_prompt_tokens, seconds=added_seconds))
            self._prompt_cost = _fit(self._prompt_costs)
        elif work.num_decodes:
            self._decode_seconds.append(seconds)
            self._num_since_decode = 0

    @property
    def _expected_decode_seconds(self) -> float:
        return median(self._decode_seconds) if self._decode_seconds else 0.0


def _fit(costs: Sequence[_Cost]) -> _CostLine:
    """Returns the line through the mean of the costs with the median of the slopes between them.

    Costs of similar numbers of tokens say nothing about the slope. Without others, and where the line would fall or
    begin below zero, it goes through the origin: that is right for as many tokens as were measured.
    """
    pairs = (sorted(pair, key=lambda cost: cost.num_tokens) for pair in combinations(costs, 2))
    slopes = [
        (more.seconds - less.seconds) / (more.num_tokens - less.num_tokens)
        for less, more in pairs
        if more.num_tokens >= 2 * less.num_tokens
    ]
    slope = median(slopes) if slopes else 0.0
    average = _seconds_per_token(costs)
    if not 0 < slope < average:
        return _CostLine(seconds_per_token=average)
    fixed_seconds = sum(cost.seconds - slope * cost.num_tokens for cost in costs) / len(costs)
    return _CostLine(fixed_seconds=fixed_seconds, seconds_per_token=slope)


def _seconds_per_token(costs: Sequence[_Cost]) -> float:
    num_tokens = sum(cost.num_tokens for cost in costs)
    return sum(cost.seconds for cost in costs) / num_tokens if num_tokens else 0.0
