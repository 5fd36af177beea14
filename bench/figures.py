"""From single measurements to figures: percentiles, spreads and tables. Pure arithmetic."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which a share (0 … 1) of them lies, interpolated between neighbours; 0 where there is none."""
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
    """Of at least one value."""
    return Spread(median=statistics.median(values), least=min(values), most=max(values))


def ratios(values: Sequence[float], others: Sequence[float]) -> Spread:
    """How many times `others` the values are, each held against the other of the same round."""
    return spread([value / other for value, other in zip(values, others, strict=True)])


def significant(value: float) -> str:
    """A number as people read it: three digits that say something."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns in line, for a terminal; as Markdown it is a table too."""
    widths = [max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([line(header), rule, *map(line, rows)])
