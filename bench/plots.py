"""Plots of results as SVG.

python -m bench.plots concurrency results.jsonl more.jsonl concurrency.svg    # of bench.serving.compare
python -m bench.plots levels steps.json levels.svg                            # of bench.engine.steps --levels --json
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from bench.figures import Spread, significant, spread

_WIDTH, _HEIGHT = 760, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 740, 90, 350
"""The plot's area."""
_COLORS = ("#1f77b4", "#d95f02", "#7570b3", "#1b9e77", "#a6761d", "#666666", "#e7298a", "#66a61e")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Values of several series in categories."""

    title: str
    x_label: str
    y_label: str
    categories: Sequence[str]
    series: Mapping[str, Sequence[Spread | None]]
    """Name → a value for each category; None where there is none."""

    @property
    def most(self) -> float:
        """The largest value."""
        return max((each.most for values in self.series.values() for each in values if each), default=1.0)


def concurrency_chart(files: Sequence[Sequence[str]]) -> Chart:
    """Charts output tokens/s against requests at a time.

    Args:
        files: the lines of each file of results of `bench.serving.compare`, at least one. They complete each other:
            figures of one target and concurrency are repetitions, whichever files they are in.

    Raises:
        ValueError: a file has no heading, no run has texts only, or the files are of different processors or options.
    """
    heads = [json.loads(lines[0]) for lines in files if lines]
    runs = [json.loads(line) for lines in files for line in lines[1:]]
    texts = [run for run in runs if run["case"].startswith("text, ")]
    variants = {(head["processor"], head.get("glimpse", "")) for head in heads}
    if len(heads) < len(files) or len(variants) != 1 or not texts:
        raise ValueError(f"expected texts with one processor and one set of options, got {len(texts)}: {variants}")
    counts = sorted({_at_a_time(run) for run in texts})

    def values(target: str, count: int) -> Spread | None:
        rates = [
            run["report"]["output_tokens_per_second"]
            for run in texts
            if (run["target"], _at_a_time(run)) == (target, count)
        ]
        return spread(rates) if rates else None

    return Chart(
        title=f"{_lengths(texts)}, on {heads[0]['processor']}",
        x_label="requests at a time",
        y_label="output tokens/s",
        categories=[str(count) for count in counts],
        series={target: [values(target, count) for count in counts] for target in dict.fromkeys(_targets(heads))},
    )


def _at_a_time(run: Mapping[str, Any]) -> int:
    """Returns the concurrency of a case such as "text, 16 at a time"."""
    return int(run["case"].split()[1])


def _targets(heads: Sequence[Mapping[str, Any]]) -> list[str]:
    return [target for head in heads for target in head["targets"]]


def _lengths(runs: Sequence[Mapping[str, Any]]) -> str:
    """Names the median lengths of prompts and answers."""
    texts = [run["report"]["latencies"]["text"] for run in runs]
    prompt, output = (spread([text[name] for text in texts]).median for name in ("prompt_tokens", "output_tokens"))
    return f"{prompt:.0f} tokens in, {output:.0f} out"


def levels_chart(variants: Sequence[Mapping[str, Any]]) -> Chart:
    """Charts the share of the machine's limit by level; `variants` are the figures of `bench.engine.steps`."""
    levels = list(dict.fromkeys(variant["level"] for variant in variants))
    names = [name for name in ("decode 1 x 512", "prefill 512", "prefill 2048") if _has(variants, name)]
    weights = list(dict.fromkeys(variant["weights"] for variant in variants))

    def share(level: str, weight: str, name: str) -> Spread | None:
        shares = [
            100 * step["share"]
            for variant in variants
            if (variant["level"], variant["weights"]) == (level, weight)
            for step in variant["steps"]
            if step["name"] == name
        ]
        return spread(shares) if shares else None

    return Chart(
        title="Share of the machine's limit: memory read rate, or the level's arithmetic units",
        x_label="instruction set level",
        y_label="% of the limit",
        categories=levels,
        series={
            f"{name}, {weight}": [share(level, weight, name) for level in levels]
            for name in names
            for weight in weights
        },
    )


def _has(variants: Sequence[Mapping[str, Any]], name: str) -> bool:
    return any(step["name"] == name for variant in variants for step in variant["steps"])


def lines_svg(chart: Chart) -> str:
    """Draws a line per series, with the spread of each value."""
    scale = _scale(chart)
    places = [_LEFT + (index + 0.5) * _slot(chart) for index in range(len(chart.categories))]
    drawn: list[str] = []
    for color, values in zip(_colors(chart), chart.series.values(), strict=True):
        points = [(x, each) for x, each in zip(places, values, strict=True) if each]
        path = " ".join(f"{x:.1f},{scale(each.median):.1f}" for x, each in points)
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        for x, each in points:
            drawn.append(_line(x, scale(each.least), x, scale(each.most), color))
            drawn.append(f'<circle cx="{x:.1f}" cy="{scale(each.median):.1f}" r="4" fill="{color}"/>')
            drawn.append(_text(x + 8, scale(each.median) - 6, significant(each.median), size=11))
    return _svg(chart, drawn)


def bars_svg(chart: Chart) -> str:
    """Draws a group of bars per category."""
    scale = _scale(chart)
    width = 0.8 * _slot(chart) / max(1, len(chart.series))
    drawn: list[str] = []
    for index, (color, values) in enumerate(zip(_colors(chart), chart.series.values(), strict=True)):
        for category, each in enumerate(values):
            if each is None:
                continue
            x, y = _LEFT + (category + 0.1) * _slot(chart) + index * width, scale(each.median)
            drawn.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{width - 2:.1f}" height="{_BOTTOM - y:.1f}" fill="{color}"/>'
            )
            drawn.append(_text(x + width / 2 - 1, y - 4, f"{each.median:.0f}", anchor="middle", size=11))
    return _svg(chart, drawn)


def _svg(chart: Chart, drawn: Sequence[str]) -> str:
    """Puts title, axes and legend around what was drawn."""
    middle = (_LEFT + _RIGHT) / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(middle, 24, chart.title, anchor="middle", size=15),
        *_legend(chart),
        *_axis(chart),
        *drawn,
        _line(_LEFT, _BOTTOM, _RIGHT, _BOTTOM, "#333333"),
        *(
            _text(_LEFT + (index + 0.5) * _slot(chart), _BOTTOM + 18, name, anchor="middle")
            for index, name in enumerate(chart.categories)
        ),
        _text(middle, _BOTTOM + 40, chart.x_label, anchor="middle"),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _axis(chart: Chart) -> list[str]:
    scale, step = _scale(chart), _step(chart.most)
    ticks = [index * step for index in range(math.ceil(chart.most / step) + 1)]
    lines = [_line(_LEFT, scale(tick), _RIGHT, scale(tick), "#dddddd") for tick in ticks]
    labels = [_text(_LEFT - 8, scale(tick) + 4, f"{tick:g}", anchor="end") for tick in ticks]
    return [*lines, *labels, _text(_LEFT - 50, _TOP - 10, chart.y_label)]


def _legend(chart: Chart) -> list[str]:
    """Names the series, three in a line."""
    parts: list[str] = []
    for index, (color, name) in enumerate(zip(_colors(chart), chart.series, strict=True)):
        x, y = _LEFT + 60 + index % 3 * 215, 44 + index // 3 * 16
        parts.append(f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{color}"/>')
        parts.append(_text(x + 15, y, name))
    return parts


def _colors(chart: Chart) -> list[str]:
    return [_COLORS[index % len(_COLORS)] for index in range(len(chart.series))]


def _slot(chart: Chart) -> float:
    """Returns the width of a category."""
    return (_RIGHT - _LEFT) / max(1, len(chart.categories))


def _scale(chart: Chart) -> Callable[[float], float]:
    """Returns the function from a value to its height on the page."""
    step = _step(chart.most)
    top = math.ceil(chart.most / step) * step
    return lambda value: _BOTTOM - (_BOTTOM - _TOP) * value / top


def _step(most: float) -> float:
    """Returns a round distance of at most eight ticks."""
    power = 10 ** math.floor(math.log10(most / 8))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power * 8 >= most)


def _line(x1: float, y1: float, x2: float, y2: float, color: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="#333333">{escape(text)}</text>'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("concurrency", "levels"))
    parser.add_argument("results", type=Path, nargs="+", help="one or several files, which are drawn together")
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    texts = [file.read_text(encoding="utf-8") for file in arguments.results]
    try:
        if arguments.kind == "concurrency":
            svg = lines_svg(concurrency_chart([text.splitlines() for text in texts]))
        else:
            svg = bars_svg(levels_chart([variant for text in texts for variant in json.loads(text)]))
    except (ValueError, KeyError, TypeError) as error:
        names = ", ".join(map(str, arguments.results))
        sys.exit(f"bench.plots: {names}: expected results of the kind {arguments.kind}: {error!r}")
    arguments.out.write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
