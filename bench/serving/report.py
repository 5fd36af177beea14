"""Reports from answers: time to first token, inter-token latency, rates, and the server's cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from bench.figures import percentile, significant, table
from bench.serving.clients import Answer
from bench.serving.interference import Interference


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Latencies of the answers with one label, in milliseconds."""

    answers: int
    prompt_tokens: float
    """A median, as are the next two."""
    cached_tokens: float
    output_tokens: float
    ttft_p50_ms: float
    ttft_p95_ms: float
    itl_p50_ms: float
    """Between consecutive chunks, over all gaps."""
    itl_p95_ms: float
    tpot_p50_ms: float
    """The median over answers of the mean time per token after the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCost:
    """What the server's processes used during the run."""

    cpu_seconds: float
    cpu_ms_per_token: float
    """Per output token, prompt processing included."""
    peak_rss_mib: float
    """The sum of its processes' peaks since they started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One run."""

    target: str
    workload: str
    arrivals: str
    """Concurrency, or requests per second."""
    seed: int
    seconds: float
    """From the first request to the end of the last answer."""
    latencies: dict[str, Latencies]
    """By label."""
    output_tokens: int
    output_tokens_per_second: float
    requests_per_second: float
    failures: list[str]
    generator_cpu_seconds: float
    """CPU time of this program, on the same machine."""
    server: ServerCost | None
    """None if its process is unknown."""
    interference: Interference | None = None


def latencies(answers: Sequence[Answer]) -> Latencies:
    """Computes the latencies of at least one answer."""
    gaps = [1000 * (after - before) for answer in answers for before, after in pairwise(answer.token_times)]
    firsts = [1000 * answer.first_token_seconds for answer in answers]
    paces = [1000 * pace for answer in answers if (pace := answer.seconds_per_token) is not None]
    return Latencies(
        answers=len(answers),
        prompt_tokens=percentile([answer.prompt_tokens for answer in answers], 0.5),
        cached_tokens=percentile([answer.cached_tokens for answer in answers], 0.5),
        output_tokens=percentile([answer.output_tokens for answer in answers], 0.5),
        ttft_p50_ms=percentile(firsts, 0.5),
        ttft_p95_ms=percentile(firsts, 0.95),
        itl_p50_ms=percentile(gaps, 0.5),
        itl_p95_ms=percentile(gaps, 0.95),
        tpot_p50_ms=percentile(paces, 0.5),
    )


def by_label(answers: Sequence[tuple[str, Answer]]) -> dict[str, Latencies]:
    """Returns the latencies of each label, in order of first answers."""
    labels = dict.fromkeys(label for label, _ in answers)
    return {label: latencies([answer for other, answer in answers if other == label]) for label in labels}


def text_report(report: Report) -> str:
    """Formats the report for a terminal."""
    lines = [f"{report.target}  {report.workload}, {report.arrivals}, seed {report.seed}", _latency_table(report)]
    if report.interference is not None:
        lines.append(_interference_text(report.interference))
    lines.append(
        f"{report.output_tokens} tokens in {report.seconds:.2f} s: {significant(report.output_tokens_per_second)} "
        f"tokens/s, {significant(report.requests_per_second)} requests/s, {len(report.failures)} failures; "
        f"the generator used {report.generator_cpu_seconds:.2f} s of processor time"
    )
    if report.server is not None:
        cost = report.server
        lines.append(
            f"server: {cost.cpu_seconds:.2f} s of processor time, {significant(cost.cpu_ms_per_token)} ms a token, "
            f"peak memory {significant(cost.peak_rss_mib)} MiB"
        )
    lines += [f"failure: {failure}" for failure in report.failures[:3]]
    return "\n".join(lines)


def _latency_table(report: Report) -> str:
    header = ["question", "answers", "in", "cached", "out", "TTFT p50 ms", "p95", "ITL p50 ms", "p95", "TPOT p50 ms"]
    rows: list[list[str]] = []
    for label, each in report.latencies.items():
        counts = (each.prompt_tokens, each.cached_tokens, each.output_tokens)
        times = (each.ttft_p50_ms, each.ttft_p95_ms, each.itl_p50_ms, each.itl_p95_ms, each.tpot_p50_ms)
        rows.append([label, str(each.answers), *(f"{count:.0f}" for count in counts), *map(significant, times)])
    return table(header, rows)


def _interference_text(each: Interference) -> str:
    warning = "" if each.covered else "\nstreams ended before the long prompt's first token: raise --output-tokens"
    return (
        f"ITL p95 {each.itl_p95_ms:.1f} ms (max {each.itl_max_ms:.1f}) while {each.long_prompt_tokens} tokens came in, "
        f"{each.ratio:.2f} times the quiet median of {each.quiet_itl_p50_ms:.1f} ms; "
        f"the long prompt's TTFT {each.long_ttft_ms:.0f} ms{warning}"
    )
