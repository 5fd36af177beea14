"""The compared cases, the figures shown of each, and their tables. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.figures import Spread, ratios, spread, table

CASES: Mapping[str, Sequence[str]] = {
    "text, 1 at a time": ("--workload=text", "--concurrency=1", "--sessions=4"),
    "text, 2 at a time": ("--workload=text", "--concurrency=2", "--sessions=4"),
    "text, 4 at a time": ("--workload=text", "--concurrency=4", "--sessions=8"),
    "text, 8 at a time": ("--workload=text", "--concurrency=8", "--sessions=16"),
    "text, 16 at a time": ("--workload=text", "--concurrency=16", "--sessions=32"),
    "image, 1 at a time": ("--workload=image", "--concurrency=1", "--sessions=6", "--output-tokens=32"),
    "image, 4 at a time": ("--workload=image", "--concurrency=4", "--sessions=8"),
    "image, cached": ("--workload=prefix", "--prompt-tokens=40", "--sessions=4", "--output-tokens=4"),
    "long prompt, cached": ("--workload=prefix", "--sessions=3", "--output-tokens=4"),
    "chat of six turns": ("--workload=chat", "--sessions=1"),
    "long prompt beside 4 streams": ("--workload=interference", "--concurrency=4", "--output-tokens=384"),
}
"""Case → options of bench.serving.serve. Default: 512 tokens in, 128 out.
"""

START = "start"


def case_options(case: str, *, sessions_share: float) -> list[str]:
    """Returns the options of a case with a share of its sessions: at least one, and as many as run at a time."""
    options = dict(option.split("=") for option in CASES[case])
    if "--sessions" in options:
        least = int(options.get("--concurrency", "1"))
        options["--sessions"] = str(max(least, round(int(options["--sessions"]) * sessions_share)))
    return [f"{name}={value}" for name, value in options.items()]


Report = Mapping[str, Any]
"""A `bench.serving.report.Report` as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of a case."""

    name: str
    better: str
    """↑ or ↓"""
    read: Callable[[Report], float | None]
    """Reads it from a report; None if absent."""


def _latency(label: str, name: str) -> Callable[[Report], float | None]:
    return lambda report: report.get("latencies", {}).get(label, {}).get(name)


def _ttft(label: str) -> Callable[[Report], float | None]:
    return _latency(label, "ttft_p50_ms")


def _itl(label: str) -> Callable[[Report], float | None]:
    return _latency(label, "itl_p50_ms")


def _of(part: str, name: str) -> Callable[[Report], float | None]:
    return lambda report: report[part][name] if report.get(part) else None


def _sooner(report: Report) -> float | None:
    cold, cached = _ttft("cold")(report), _ttft("cached")(report)
    return cold / cached if cold and cached else None


def _if_loaded(name: str) -> Callable[[Report], float | None]:
    return lambda report: report.get(name) if report.get("workload") in {"text", "image", "chat"} else None


FIGURES = (
    Figure(name="healthy after, s", better="↓", read=lambda report: report.get("healthy_seconds")),
    Figure(name="first token after, s", better="↓", read=lambda report: report.get("first_answer_seconds")),
    Figure(name="output tokens/s", better="↑", read=_if_loaded("output_tokens_per_second")),
    Figure(name="whole run, s", better="↓", read=_if_loaded("seconds")),
    Figure(name="TTFT p50, ms", better="↓", read=_ttft("text")),
    Figure(name="TTFT p50, ms", better="↓", read=_ttft("image")),
    Figure(name="TTFT cold, ms", better="↓", read=_ttft("cold")),
    Figure(name="TTFT other question, ms", better="↓", read=_ttft("other question")),
    Figure(name="TTFT cached, ms", better="↓", read=_ttft("cached")),
    Figure(name="cold / cached", better="↑", read=_sooner),
    Figure(name="TTFT later turns, ms", better="↓", read=_ttft("later turns")),
    Figure(name="ITL p50, ms", better="↓", read=_itl("text")),
    Figure(name="ITL p50, ms", better="↓", read=_itl("image")),
    Figure(name="TPOT p50, ms", better="↓", read=_latency("text", "tpot_p50_ms")),
    Figure(name="TPOT p50, ms", better="↓", read=_latency("image", "tpot_p50_ms")),
    Figure(name="quiet ITL p50, ms", better="↓", read=_of("interference", "quiet_itl_p50_ms")),
    Figure(name="disturbed ITL p95, ms", better="↓", read=_of("interference", "itl_p95_ms")),
    Figure(name="p95 / quiet median", better="↓", read=_of("interference", "ratio")),
    Figure(name="TTFT of the long prompt, ms", better="↓", read=_of("interference", "long_ttft_ms")),
    Figure(name="server CPU ms/token", better="↓", read=_of("server", "cpu_ms_per_token")),
    Figure(name="peak memory, MiB", better="↓", read=_of("server", "peak_rss_mib")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The result of one case on one target in one round."""

    round: int
    target: str
    case: str
    report: Report


def comparison(runs: Sequence[Run], targets: Sequence[str]) -> str:
    """Formats a table per case: each target's median and spread, and the first target's ratio to the others.

    Ratios are between runs of the same round; their spread is over the rounds.
    """
    cases = dict.fromkeys(run.case for run in runs)
    return "\n\n".join(f"### {case}\n\n{_table([run for run in runs if run.case == case], targets)}" for case in cases)


def _table(runs: Sequence[Run], targets: Sequence[str]) -> str:
    ours, *peers = targets
    header = ["", *targets, *(f"{ours} / {peer}" for peer in peers)]
    return table(header, [_row(figure, runs, targets) for figure in _shown(runs)])


def _shown(runs: Sequence[Run]) -> Iterator[Figure]:
    return (figure for figure in FIGURES if any(figure.read(run.report) is not None for run in runs))


def _row(figure: Figure, runs: Sequence[Run], targets: Sequence[str]) -> list[str]:
    values = {target: _by_round(figure, runs, target) for target in targets}
    ours, *peers = targets
    cells = [_cell(spread(list(values[target].values())) if values[target] else None) for target in targets]
    return [f"{figure.name} {figure.better}", *cells, *(_cell(_ratio(values[ours], values[peer])) for peer in peers)]


def _by_round(figure: Figure, runs: Sequence[Run], target: str) -> dict[int, float]:
    read = ((run.round, figure.read(run.report)) for run in runs if run.target == target)
    return {number: value for number, value in read if value is not None}


def _ratio(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Spread | None:
    rounds = [number for number in ours if theirs.get(number)]
    return ratios([ours[number] for number in rounds], [theirs[number] for number in rounds]) if rounds else None


def _cell(each: Spread | None) -> str:
    return "–" if each is None else str(each)
