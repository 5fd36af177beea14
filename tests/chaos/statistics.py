"""Percentiles and histograms of what was measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How a measure is distributed, in its own unit."""

    count: int
    p50: float
    p99: float
    max: float


def spread(values: Sequence[float]) -> Spread | None:
    """Returns the distribution; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return Spread(count=len(ordered), p50=_rank(ordered, 0.5), p99=_rank(ordered, 0.99), max=ordered[-1])


def _rank(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass(slots=True)
class HistogramTotal:
    """A Prometheus histogram over restarts of the server, which begin again at zero."""

    increments: dict[float, float] = field(default_factory=dict[float, float])
    """Observations by the upper bound of their bucket."""
    _last: dict[float, float] = field(default_factory=dict[float, float])

    def update(self, cumulative: Mapping[float, float]) -> float | None:
        """Adds a scrape, cumulative counts by upper bound; returns the bound of its largest new observation."""
        if any(cumulative.get(bound, 0) < count for bound, count in self._last.items()):
            self._last = {}
        below, largest = 0.0, None
        for bound in sorted(cumulative):
            new = cumulative[bound] - self._last.get(bound, 0)
            self.increments[bound] = self.increments.get(bound, 0) + new - below
            largest = bound if new > below else largest
            below = new
        self._last = dict(cumulative)
        return largest

    def bound(self, share: float) -> float | None:
        """Returns the upper bound of the bucket of a percentile, 1 for the largest; None of nothing."""
        total = sum(self.increments.values())
        reached = 0.0
        for bound in sorted(self.increments):
            reached += self.increments[bound]
            if total and reached >= share * total and self.increments[bound]:
                return bound
        return None
