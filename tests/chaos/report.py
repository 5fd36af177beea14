"""The report of a campaign: as JSON, and as text for a person."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tests.chaos.attack import DISCONNECTS
from tests.chaos.attacks.kills import STOPPED_FRONT_END
from tests.chaos.campaign import KILLS, Campaign, Run
from tests.chaos.ledger import Fault, Judged, Ledger, fault_counts
from tests.chaos.measures import Measures
from tests.chaos.options import Bounds
from tests.chaos.probes import Latency
from tests.chaos.statistics import Spread, spread

_MIB = 1 << 20
_TOGETHER = "together"
_SHARED = (DISCONNECTS, "resets", "control frames", "bodies of", "prompts of", "bursts of", "restarts")
"""How counts begin that are worth a sum over all attacks."""

Times = Sequence[tuple[float, float]]
"""Beginnings and ends."""


def report_of(campaign: Campaign) -> dict[str, Any]:
    """Returns the report, ready for JSON."""
    options, ledger = campaign.options, campaign.ledger
    faults = ledger.faults()
    report: dict[str, Any] = {
        "seed": options.seed,
        "seconds": options.seconds,
        "scale": options.scale,
        "serve_args": options.serve_args,
        "faults": {fault.value: count for fault, count in fault_counts(faults).items()},
        "examples": _examples(faults),
        "outcomes": ledger.outcomes(),
        "codes": ledger.codes(),
        "done": _done(campaign),
        "interrupted": campaign.is_interrupted,
        "left_behind": campaign.leftovers,
        "restarts_by_the_supervisor": campaign.restarts,
        "exit_status": campaign.exit_status,
        "attacks": {name: _attack(name, run, campaign) for name, run in sorted(campaign.runs.items())},
    }
    if campaign.probes is not None:
        report["probes_ms"] = _probes(campaign, _answerable(ledger))
        report["quiet_probes_ms"] = _probes(campaign, _quiet(ledger))
        report["own_delay_ms"] = 1000 * campaign.probes.own_delay_seconds
    if campaign.bystanders is not None:
        quiet = _quiet(ledger)
        seconds = [each.seconds for each in campaign.bystanders.first_tokens if _within(each.at, quiet)]
        report["quiet_first_token_ms"] = _milliseconds(seconds)
    if campaign.measures is not None:
        report |= _held(campaign.measures)
    report["exceeded"] = [*_missing_kills(campaign), *exceeded(report, options.bounds)]
    return report


def exceeded(report: Mapping[str, Any], bounds: Bounds) -> list[str]:
    """Returns a line for each bound that was exceeded, or that could not be checked."""
    lines: list[str] = []

    def check(what: str, value: float | None, bound: float | None) -> None:
        if bound is not None and value is None:
            lines.append(f"{what}: expected at most {bound:g}, measured nothing")
        elif bound is not None and value is not None and value > bound:
            lines.append(f"{what}: expected at most {bound:g}, got {value:.1f}")

    for name, probe in report.get("probes_ms", {}).items():
        if name != "/v1/models":
            check(f"99th percentile of {name} in ms", probe and probe["p99"], bounds.health_p99_ms)
    check("99th percentile of the event loop's delay in ms", report.get("loop_delay_p99_ms"), bounds.loop_delay_ms)
    recovery = report["attacks"].get("kill-engine", {}).get("recovery_seconds")
    check("median recovery from a kill of the engine in s", recovery and recovery["p50"], bounds.recovery_seconds)
    growth = report.get("memory_mib", {}).get(_TOGETHER, {}).get("growth_percent")
    check("growth of memory in %", growth, bounds.memory_growth_percent)
    return lines


def has_failed(report: Mapping[str, Any]) -> bool:
    """Whether the campaign found anything that it must not find."""
    return any(report["faults"].values()) or bool(report["exceeded"] or report["left_behind"] or report["interrupted"])


def text_of(report: Mapping[str, Any]) -> str:
    return "\n".join(_lines(report))


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    yield f"seed {report['seed']}, {report['seconds']:g} s, scale {report['scale']:g}"
    if report["interrupted"]:
        yield "interrupted: this is what was done until then"
    yield f"attacks in all: {_counts(report['done']) or 'none'}"
    yield f"requests: {_counts(report['outcomes'])}"
    yield f"errors by code: {_counts(report['codes']) or 'none'}"
    yield f"faults: {_counts(report['faults'])}"
    yield from (f"  {count} × {example}" for example, count in report["examples"].items())
    for name, values in report.get("probes_ms", {}).items():
        yield f"{name}: {_spread(values, 'ms')}; quiet {_spread(report['quiet_probes_ms'].get(name), 'ms')}"
    if "own_delay_ms" in report:
        yield f"this program's own delay: up to {report['own_delay_ms']:.0f} ms"
    if report.get("loop_delay_p99_ms") is not None:
        yield f"event loop's delay: p99 ≤ {report['loop_delay_p99_ms']:g} ms, max ≤ {report['loop_delay_max_ms']:g} ms"
    for role, held in report.get("memory_mib", {}).items():
        yield f"memory of {role}: {held['before']} MiB, peak {held['peak']}, after {held['after']}" + _more(held)
    yield f"first token when quiet: {_spread(report.get('quiet_first_token_ms'), 'ms')}"
    for name, attack in report["attacks"].items():
        yield f"{name}: {attack['runs']} × {attack['mean_seconds']:.1f} s; {_counts(attack['counts']) or 'nothing'}"
        yield f"  /health {_spread(attack['health_ms'], 'ms')}; first token {_spread(attack['first_token_ms'], 'ms')}"
        if attack["loop_delay_max_ms"] is not None:
            yield f"  event loop's delay: max ≤ {attack['loop_delay_max_ms']:g} ms"
        if attack["recovery_seconds"] is not None:
            yield f"  recovery {_spread(attack['recovery_seconds'], 's')}"
    if report["left_behind"]:
        yield f"processes left behind: {', '.join(report['left_behind'])}"
    yield from (f"exceeded: {line}" for line in report["exceeded"])
    yield "FAILED" if has_failed(report) else "passed"


def _more(held: Mapping[str, Any]) -> str:
    if "descriptors" not in held:
        return ""
    return f"; descriptors {' → '.join(map(str, held['descriptors']))}, threads {' → '.join(map(str, held['threads']))}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))


def _spread(values: Mapping[str, float] | None, unit: str) -> str:
    if values is None:
        return "not measured"
    return f"p50 {values['p50']:.1f}, p99 {values['p99']:.1f}, max {values['max']:.1f} {unit} of {values['count']}"


def _examples(faults: Sequence[Judged]) -> dict[str, int]:
    """Counts faults that look alike, by the first of them."""
    kinds: dict[tuple[Fault, str, str, tuple[str, ...]], list[Judged]] = {}
    for each in faults:
        kinds.setdefault((each.fault, each.ending.who, each.ending.code, each.attacks), []).append(each)
    return {str(alike[0]): len(alike) for alike in kinds.values()}


def _attack(name: str, run: Run, campaign: Campaign) -> dict[str, Any]:
    windows = [(window.start, window.end) for window in campaign.ledger.windows if window.attack == name]
    first_tokens = campaign.bystanders.first_tokens if campaign.bystanders else ()
    return {
        "runs": len(run.seconds),
        "mean_seconds": sum(run.seconds) / len(run.seconds),
        "counts": run.counts,
        "recovery_seconds": _dictionary(spread(run.recoveries)),
        "health_ms": _probes(campaign, windows).get("/health"),
        "loop_delay_max_ms": _longest_loop_delay(campaign.measures, windows),
        "first_token_ms": _milliseconds([each.seconds for each in first_tokens if _within(each.at, windows)]),
    }


def _done(campaign: Campaign) -> dict[str, int]:
    """What all attacks did together: kills and stops by process, and the counts that attacks share."""
    done: Counter[str] = Counter()
    for name, run in campaign.runs.items():
        done.update({name: run.counts["kills"] + run.counts["stops"]})
        done.update({what: count for what, count in run.counts.items() if what.startswith(_SHARED)})
    return {what: count for what, count in done.items() if count}


def _missing_kills(campaign: Campaign) -> Iterator[str]:
    for name in KILLS if campaign.options.kills else ():
        count = campaign.runs[name].counts["kills"] if name in campaign.runs else 0
        if name in campaign.options.attacks and count < campaign.options.kills:
            yield f"{name}: expected {campaign.options.kills} kills, got {count}"


def _longest_loop_delay(measures: Measures | None, times: Times) -> float | None:
    """The bound of the longest delay of the event loop in these times, or in the scrape after each."""
    scrapes = measures.loop_delays if measures else ()
    delays = [1000 * bound for at, bound in scrapes if any(start <= at <= end + 1 for start, end in times)]
    return max(delays, default=None)


def _quiet(ledger: Ledger) -> Times:
    """The time before the first attack."""
    return [(0.0, min((window.start for window in ledger.windows), default=float("inf")))]


def _answerable(ledger: Ledger) -> Times:
    """All the time but that in which the front end is stopped: nothing can answer then."""
    stops = [(each.start, each.end) for each in ledger.windows if each.attack == STOPPED_FRONT_END]
    starts = [0.0, *(end for _, end in stops)]
    ends = [*(start for start, _ in stops), float("inf")]
    return list(zip(starts, ends, strict=True))


def _probes(campaign: Campaign, times: Times) -> dict[str, Any]:
    """The latencies of the probes that began in these times, which are in order."""
    if campaign.probes is None:
        return {}
    return {
        name: _milliseconds([each.seconds for start, end in times for each in _between(latencies, start, end)])
        for name, latencies in campaign.probes.latencies.items()
    }


def _between(latencies: Sequence[Latency], start: float, end: float) -> Sequence[Latency]:
    return [each for each in latencies if start <= each.at <= end]


def _within(at: float, times: Times) -> bool:
    return any(start <= at <= end for start, end in times)


def _milliseconds(seconds: Sequence[float]) -> dict[str, Any] | None:
    return _dictionary(spread([1000 * each for each in seconds]))


def _dictionary(values: Spread | None) -> dict[str, Any] | None:
    return None if values is None else asdict(values)


def _held(measures: Measures) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    before, after = measures.before, measures.after
    for role in sorted({*before, *after}):
        first, last = before.get(role), after.get(role)
        rows[role] = _memory(first and first.memory_bytes, measures.peak_bytes.get(role), last and last.memory_bytes)
        if first and last:
            rows[role]["descriptors"] = [first.num_descriptors, last.num_descriptors]
            rows[role]["threads"] = [first.num_threads, last.num_threads]
    sums = [sum(each.memory_bytes for each in holdings.values()) for holdings in (before, after)]
    rows[_TOGETHER] = _memory(sums[0], measures.peak_bytes.get(_TOGETHER), sums[1])
    if sums[0] and after:
        rows[_TOGETHER]["growth_percent"] = 100 * (sums[1] / sums[0] - 1)
    p99, most = (measures.loop_delay.bound(share) for share in (0.99, 1.0))
    return {
        "memory_mib": rows,
        "loop_delay_p99_ms": None if p99 is None else 1000 * p99,
        "loop_delay_max_ms": None if most is None else 1000 * most,
    }


def _memory(before: int | None, peak: int | None, after: int | None) -> dict[str, Any]:
    sizes = {"before": before, "peak": peak, "after": after}
    return {name: round((size or 0) / _MIB) for name, size in sizes.items()}
