"""Percentiles, spreads and tables of measurements. Pure arithmetic."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the quantile at `share` (0 … 1), interpolated between neighbours; 0 for no values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    lower = int(place)
    upper = min(lower + 1, len(ordered) - 1)
    return ordered[lower] + (ordered[upper] - ordered[lower]) * (place - lower)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Repeated measurements of one thing."""

    median: float
    least: float
    most: float

    def __str__(self) -> str:
        if self.least == self.most:
            return significant(self.median)
        return f"{significant(self.median)} [{significant(self.least)}..{significant(self.most)}]"


def spread(values: Sequence[float]) -> Spread:
    """Computes the spread of at least one value."""
    return Spread(median=statistics.median(values), least=min(values), most=max(values))


def ratios(values: Sequence[float], others: Sequence[float]) -> Spread:
    """Returns the spread of the ratios to `others`, round by round."""
    return spread([value / other for value, other in zip(values, others, strict=True)])


def significant(value: float) -> str:
    """Formats a number with three significant digits."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Formats an aligned Markdown table."""
    widths = [max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([line(header), rule, *map(line, rows)])
