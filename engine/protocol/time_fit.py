"""Learns how long work takes from how long it took: a time for each unit of each kind of work."""

from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_WINDOW = 48
_RIDGE = 1e-6
"""Keeps apart what the times so far do not tell apart."""
_RIDGE_OF_LEAST_LIKELY = 100 * _RIDGE
_ROUNDS = 6
_PRECISION = 0.05
"""Relative error from which on a time counts less. Times that are nearer are equally good."""

_Vector = npt.NDArray[np.float64]


class TimeFit:
    """Times as sums of non-negative seconds per unit: least absolute relative errors, by iteratively reweighted least
    squares, over recent times.

    Other work of the machine makes some times much longer. Those count little for the time of one piece of work, but
    many pieces together take their mean. What makes a single time much longer, such as a start or a pause, is not
    expected again.
    """

    def __init__(self, num_units: int, *, window: int = _WINDOW, least_likely: int | None = None) -> None:
        """Starts without times.

        Args:
            num_units: Kinds of work.
            window: Times of each group that count.
            least_likely: The index of the kind that gets little of what the times do not tell apart.
        """
        self._ridge = np.full(num_units, _RIDGE)
        if least_likely is not None:
            self._ridge[least_likely] = _RIDGE_OF_LEAST_LIKELY
        self._window = window
        self._recent: dict[str, deque[tuple[Sequence[float], float]]] = {}
        self._factors: _Vector | None = None
        """None: times came since it was computed."""
        self._mean = 1.0
        """Mean of recent times, relative to the fit."""

    def observe(self, units: Sequence[float], seconds: float, *, group: str = "") -> None:
        """Records how long so many units of each kind took together. A group keeps its times whatever others get."""
        if seconds > 0:
            self._recent.setdefault(group, deque(maxlen=self._window)).append((units, seconds))
            self._factors = None

    def seconds(self, units: Sequence[float], *, num_pieces: float = 1) -> float | None:
        """Returns how long so many units of each kind would take; None before a time was recorded.

        `num_pieces`: the units are those of so many pieces of work.
        """
        if not self._recent:
            return None
        if self._factors is None:
            self._factors = self._fit()
        late = 1 + (self._mean - 1) * (1 - 1 / max(num_pieces, 1))
        return late * float(self._factors @ np.asarray(units, dtype=np.float64))

    def _fit(self) -> _Vector:
        times = [each for group in self._recent.values() for each in group]
        # Units relative to their time: each row sums to 1 where the fit is exact.
        rows = np.array([units for units, _ in times], dtype=np.float64) / [[seconds] for _, seconds in times]
        weights, factors = np.ones(len(times)), np.zeros(len(self._ridge))
        for _ in range(_ROUNDS):
            factors = _non_negative(rows, weights, self._ridge)
            weights = 1 / np.maximum(np.abs(rows @ factors - 1), _PRECISION)
        seconds = np.array([seconds for _, seconds in times])
        expected = (rows @ factors) * seconds
        late = np.sort(seconds - expected)
        late[-1] = late[-2:][0]
        self._mean = max(1.0 + float(late.sum() / expected.sum()), 1.0) if expected.any() else 1.0
        return factors


def _non_negative(rows: _Vector, weights: _Vector, ridge: _Vector) -> _Vector:
    """Returns the factors whose sums over each row are nearest to 1; kinds whose factor would be negative have none."""
    products, sums = rows.T @ (rows * weights[:, None]), rows.T @ weights
    factors = np.zeros(len(sums))
    kept = np.flatnonzero(np.diag(products))
    while kept.size:
        scale = np.sqrt(np.diag(products)[kept])
        scaled = products[np.ix_(kept, kept)] / np.outer(scale, scale) + np.diag(ridge[kept])
        found = np.linalg.solve(scaled, sums[kept] / scale) / scale
        if found.min() >= 0:
            factors[kept] = found
            break
        kept = np.delete(kept, found.argmin())
    return factors
