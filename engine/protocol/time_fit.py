"""Learns how long work takes from how long it took: a time for each unit of each kind of work."""

from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_WINDOW = 48
"""Times of each group that count."""
_RIDGE = 1e-6
"""Keeps apart what the times so far do not tell apart."""
_ROUNDS = 6
_PRECISION = 0.05
"""Relative error from which on a time counts less. Times that are nearer are equally good."""

_Vector = npt.NDArray[np.float64]


class TimeFit:
    """Times as sums of non-negative seconds per unit: least absolute relative errors, by iteratively reweighted least
    squares, over recent times.

    Other work of the machine makes some times much longer: those count little.
    """

    def __init__(self, num_units: int) -> None:
        self._num_units = num_units
        self._recent: dict[str, deque[tuple[Sequence[float], float]]] = {}
        self._factors: _Vector | None = None
        """None: times came since it was computed."""

    def observe(self, units: Sequence[float], seconds: float, *, group: str = "") -> None:
        """Records how long so many units of each kind took together. A group keeps its times whatever others get."""
        if seconds > 0:
            self._recent.setdefault(group, deque(maxlen=_WINDOW)).append((units, seconds))
            self._factors = None

    def seconds(self, units: Sequence[float]) -> float | None:
        """Returns how long so many units of each kind would take; None before a time was recorded."""
        if not self._recent:
            return None
        if self._factors is None:
            self._factors = self._fit()
        return float(self._factors @ np.asarray(units, dtype=np.float64))

    def _fit(self) -> _Vector:
        times = [each for group in self._recent.values() for each in group]
        # Units relative to their time: each row sums to 1 where the fit is exact.
        rows = np.array([units for units, _ in times], dtype=np.float64) / [[seconds] for _, seconds in times]
        weights, factors = np.ones(len(times)), np.zeros(self._num_units)
        for _ in range(_ROUNDS):
            factors = _non_negative(rows, weights)
            weights = 1 / np.maximum(np.abs(rows @ factors - 1), _PRECISION)
        return factors


def _non_negative(rows: _Vector, weights: _Vector) -> _Vector:
    """Returns the factors whose sums over each row are nearest to 1; kinds whose factor would be negative have none."""
    products, sums = rows.T @ (rows * weights[:, None]), rows.T @ weights
    factors = np.zeros(len(sums))
    kept = np.flatnonzero(np.diag(products))
    while kept.size:
        scale = np.sqrt(np.diag(products)[kept])
        scaled = products[np.ix_(kept, kept)] / np.outer(scale, scale) + _RIDGE * np.eye(kept.size)
        found = np.linalg.solve(scaled, sums[kept] / scale) / scale
        if found.min() >= 0:
            factors[kept] = found
            break
        kept = np.delete(kept, found.argmin())
    return factors
