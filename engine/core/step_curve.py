"""What a step takes by its tokens, learnt from recent steps. Pure arithmetic, no clock."""

from bisect import bisect
from collections import defaultdict, deque
from collections.abc import Callable
from functools import cached_property
from itertools import pairwise
from math import inf

WINDOW = 8
"""Number of recent steps of each size that count: enough to ignore a few that other processes delayed."""
STALE_AGE = 64
"""Steps after which a size gives way to newer ones that contradict it. It still counts: a prompt after a long answer
finds the budget of the one before."""


class StepCurve:
    """What steps of so many tokens took recently, and what others would take.

    Steps of one size, by default those between two powers of two, are one point of the curve, which is a straight line
    between points. A step of no tokens takes no time, unless one was measured.
    """

    def __init__(
        self,
        *,
        rank: float = 0.5,
        size: Callable[[int], int] = int.bit_length,
        num_needed: int = 1,
        max_age: float = inf,
    ) -> None:
        """
        Args:
            rank: Which of the steps of a size counts: 0 for the shortest, 0.5 for the median.
            size: Returns the size of a step with so many tokens.
            num_needed: Steps of a size below which it has no point.
            max_age: Steps after which one no longer counts at all.
        """
        self._rank = rank
        self._num_needed = num_needed
        self._max_age = max_age
        self._size = size
        self._num_steps = 0
        # Size → (seconds, tokens, number of the step).
        self._recent = defaultdict[int, deque[tuple[float, int, int]]](lambda: deque(maxlen=WINDOW))

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Records how long a step took."""
        self._num_steps += 1
        self._recent[self._size(num_tokens)].append((seconds, num_tokens, self._num_steps))
        vars(self).pop("_points", None)

    @cached_property
    def _points(self) -> list[tuple[int, float]]:
        """(tokens, seconds), both ascending. Computed when it is wanted: steps that only decode are many and short."""
        now, points = self._num_steps, list[tuple[int, float]]()
        # The largest first, but after all that are not stale.
        for recent in sorted(self._recent.values(), key=lambda own: ((now - own[-1][2]) // STALE_AGE, -own[-1][1])):
            steps = sorted([step for step in recent if now - step[2] < self._max_age])
            if len(steps) >= self._num_needed:
                seconds, num_tokens, _ = steps[int(self._rank * (len(steps) - 1))]
                # More tokens never take less. Where they did, fewer were delayed, or what is stale is wrong.
                index = bisect(points, (num_tokens,))
                least = points[index - 1][1] if index else 0.0
                most = points[index][1] if index < len(points) else inf
                points.insert(index, (num_tokens, min(max(seconds, least), most)))
        return points if points and not points[0][0] else [(0, 0.0), *points]

    @property
    def num_sizes(self) -> int:
        """How many sizes were measured, but that of no tokens."""
        return len(self._points) - 1

    @property
    def most_tokens(self) -> int:
        """Tokens of the largest steps that were measured."""
        return self._points[-1][0]

    @property
    def line(self) -> tuple[float, float]:
        """Seconds of any step and what each token adds, by the smallest and the largest steps; zeros if none is."""
        points = self._points
        (least, least_seconds), (most, most_seconds) = points[min(1, len(points) - 2)], points[-1]
        token_seconds = (most_seconds - least_seconds) / (most - least) if most > least else 0.0
        return max(0.0, least_seconds - least * token_seconds), token_seconds

    def seconds(self, num_tokens: int) -> float:
        """Returns what a step with so many tokens takes; with more than were measured, as long as with those."""
        for (less, less_seconds), (more, more_seconds) in pairwise(self._points):
            if num_tokens <= more:
                return less_seconds + (more_seconds - less_seconds) * (num_tokens - less) / (more - less)
        return self._points[-1][1]

    def num_tokens_within(self, seconds: float) -> int:
        """Returns how many tokens a step takes in `seconds`, at most twice as many as were measured."""
        for (less, less_seconds), (more, more_seconds) in pairwise(self._points):
            if seconds < more_seconds:
                return int(less + (more - less) * (seconds - less_seconds) / (more_seconds - less_seconds))
        most, most_seconds = self._points[-1]
        return int(most * min(seconds / most_seconds, 2.0)) if most_seconds else 2 * most
