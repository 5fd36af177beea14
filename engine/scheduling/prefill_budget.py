"""How much prompt a step may take on beside running answers, so that these keep their pace.

Pure arithmetic over the work and the durations of recent steps; it measures no time and knows no sequence. A step's
expected duration is that of a step that only decodes, and what each prompt token and each encoded medium adds.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

NUM_FREE_TOKENS = 16
"""Prompt tokens that a step of decodes takes on in any case: it reads all weights anyhow, so they cost little. A step
with no more than these therefore measures decoding too, and a prompt is never held up for good."""
NUM_UNTRIED_TOKENS = 64
"""Prompt tokens beside decodes while little is known of their cost."""
DEFAULT_MEDIA_WEIGHT = 2.0
"""The cost of encoding one token of a medium, in prompt tokens, until it was measured."""
WINDOW = 8
"""Recent steps of each kind that count: enough for a median to shrug off a step that something else held up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """What a step computed."""

    num_decodes: int
    """Sequences of which it computed their one new token."""
    num_prompt_tokens: int
    """All other tokens."""
    num_media_tokens: int
    """Placeholder tokens of the media that it encoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cost:
    """What a number of tokens added to a step."""

    num_tokens: int
    seconds: float


class PrefillBudget:
    """Estimates from recent steps, and the budget that follows from them."""

    def __init__(self, *, max_slowdown: float) -> None:
        """
        Args:
            max_slowdown: The longest a step with decodes should take, in steps that only decode; at least 1.
        """
        self._max_slowdown = max_slowdown
        self._decode_seconds: deque[float] = deque(maxlen=WINDOW)
        self._prompt_costs: deque[_Cost] = deque(maxlen=WINDOW)
        self._media_costs: deque[_Cost] = deque(maxlen=WINDOW)

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens that a step with decodes may take on, media in terms of these; at least `NUM_FREE_TOKENS`."""
        # A cost is trusted for a few more tokens than it was measured with: past some number it rises.
        most_tried = max((cost.num_tokens for cost in self._prompt_costs), default=0)
        bound = max(NUM_UNTRIED_TOKENS, 2 * most_tried)
        spare_seconds = (self._max_slowdown - 1) * self._expected_decode_seconds
        if spare_seconds < bound * self._seconds_per_prompt_token:
            bound = int(spare_seconds / self._seconds_per_prompt_token)
        return max(NUM_FREE_TOKENS, bound)

    @property
    def media_weight(self) -> float:
        """The cost of encoding one token of a medium, in prompt tokens."""
        prompt, media = self._seconds_per_prompt_token, _seconds_per_token(self._media_costs)
        return media / prompt if prompt and media else DEFAULT_MEDIA_WEIGHT

    def observe(self, work: StepWork, seconds: float) -> None:
        """Takes note of a step that took so long."""
        added_seconds = max(0.0, seconds - self._expected_decode_seconds)
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
