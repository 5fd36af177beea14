"""Plots of the benchmarks' results."""

import json
from collections.abc import Callable
from xml.etree import ElementTree

import pytest

from bench.figures import spread
from bench.plots import Chart, bars_svg, concurrency_chart, levels_chart, lines_svg

_SVG = "{http://www.w3.org/2000/svg}"


def _results(rates: dict[str, dict[str, list[int]]], **changes: str) -> list[str]:
    """Results of bench.serving.compare: case → target → output tokens/s of each round."""
    heading = {"processor": "2 x CPU", "glimpse": "--cpu-level=avx2", **changes}
    about = {**heading, "targets": {target: "" for targets in rates.values() for target in targets}}
    lengths = {"prompt_tokens": 510, "output_tokens": 96}
    runs = [
        {
            "target": target,
            "case": case,
            "report": {"output_tokens_per_second": rate, "latencies": {"text": lengths}},
        }
        for case, targets in rates.items()
        for target, values in targets.items()
        for rate in values
    ]
    return [json.dumps(line) for line in (about, *runs)]


def test_output_is_charted_against_concurrency() -> None:
    start = json.dumps({"target": "glimpse", "case": "start", "report": {"healthy_seconds": 4}})
    results = _results(
        {"text, 16 at a time": {"glimpse": [200]}, "text, 1 at a time": {"glimpse": [30, 32], "peer": [20, 24]}}
    )
    chart = concurrency_chart([[*results, start]])
    assert chart.categories == ["1", "16"]
    assert chart.series == {"glimpse": [spread([30, 32]), spread([200])], "peer": [spread([20, 24]), None]}
    assert chart.title == "510 tokens in, 96 out, on 2 x CPU"


def test_files_of_results_complete_each_other() -> None:
    chart = concurrency_chart(
        [
            _results({"text, 1 at a time": {"glimpse": [30]}, "text, 8 at a time": {"glimpse": [90]}}),
            _results({"text, 2 at a time": {"glimpse": [50]}, "text, 1 at a time": {"glimpse": [32], "peer": [20]}}),
        ]
    )
    assert chart.categories == ["1", "2", "8"]
    assert chart.series == {
        "glimpse": [spread([30, 32]), spread([50]), spread([90])],
        "peer": [spread([20]), None, None],
    }


@pytest.mark.parametrize("changes", [{"processor": "4 x CPU"}, {"glimpse": "--cpu-level=avx512"}])
def test_results_of_two_machines_or_levels_are_not_one_chart(changes: dict[str, str]) -> None:
    rates = {"text, 1 at a time": {"glimpse": [30]}}
    with pytest.raises(ValueError, match="expected texts with one processor and one set of options, got 2"):
        concurrency_chart([_results(rates), _results(rates, **changes)])


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
