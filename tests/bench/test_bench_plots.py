"""Plots of the benchmarks' results."""

import json
from collections.abc import Callable
from xml.etree import ElementTree

import pytest

from bench.figures import spread
from bench.plots import Chart, bars_svg, concurrency_chart, levels_chart, lines_svg

_SVG = "{http://www.w3.org/2000/svg}"


def test_output_is_charted_against_concurrency() -> None:
    about = {"processor": "2 x CPU", "targets": {"glimpse": "", "peer": ""}}
    rates = {"text, 1 at a time": {"glimpse": [30, 32], "peer": [20, 24]}, "text, 16 at a time": {"glimpse": [200]}}
    runs = [
        {"target": target, "case": case, "report": {"output_tokens_per_second": rate}}
        for case, targets in rates.items()
        for target, values in targets.items()
        for rate in values
    ]
    other = {"target": "glimpse", "case": "start", "report": {"healthy_seconds": 4}}
    chart = concurrency_chart([json.dumps(line) for line in (about, other, *runs)])
    assert chart.categories == ["1", "16"]
    assert chart.series == {"glimpse": [spread([30, 32]), spread([200])], "peer": [spread([20, 24]), None]}


def test_shares_of_the_limit_are_charted_by_level() -> None:
    variants = [
        {"level": level, "weights": "bfloat16", "steps": [{"name": "prefill 512", "share": share}]}
        for level, share in (("avx2", 0.5), ("avx512", 0.75))
    ]
    chart = levels_chart(variants)
    assert chart.categories == ["avx2", "avx512"]
    assert chart.series == {"prefill 512, bfloat16": [spread([50]), spread([75])]}


@pytest.mark.parametrize("draw", [lines_svg, bars_svg])
def test_a_plot_names_what_it_shows(draw: Callable[[Chart], str]) -> None:
    chart = Chart(
        title="a < b",
        x_label="x",
        y_label="y",
        categories=["one", "two"],
        series={"first": [spread([10]), spread([20])], "second": [spread([5, 15]), None]},
    )
    root = ElementTree.fromstring(draw(chart))
    texts = [element.text for element in root.iter(f"{_SVG}text")]
    assert {"a < b", "x", "y", "one", "two", "first", "second"} <= set(texts)


def test_a_bar_is_as_high_as_its_value() -> None:
    chart = Chart(
        title="", x_label="", y_label="", categories=["one"], series={"a": [spread([10])], "b": [spread([5])]}
    )
    root = ElementTree.fromstring(bars_svg(chart))
    heights = [float(bar.get("height", 0)) for bar in root.iter(f"{_SVG}rect") if float(bar.get("height", 0)) > 20]
    _, first, second = heights  # the first one is the background
    assert first == pytest.approx(2 * second)
