"""What `glimpse bench` prints."""

from collections.abc import Iterator, Sequence

import msgspec

from glimpse.engine.benchmark.messages import LimitsReport, StepShare
from glimpse.server.cli.local.tables import table

_BUSY = 0.3
"""Load average for each processor from which other programs lower the figures."""


class FirstToken(msgspec.Struct, frozen=True, kw_only=True):
    """How long an answer takes to begin."""

    prompt_tokens: int
    content: str
    """What is in the prompt besides text; empty for nothing."""
    seconds: float
    """The median of several prompts, none of which was cached."""


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """How fast answers come."""

    at_once: int
    """Requests that run together."""
    tokens: int
    """Tokens of each answer."""
    tokens_per_second: float
    """Rate of all answers together."""


class BenchReport(msgspec.Struct, frozen=True, kw_only=True):
    """A machine, and a model on it."""

    processors: int
    """Processors that a process may use."""
    load: float
    """Load average of the minute before."""
    limits: LimitsReport
    steps: list[StepShare] = []
    """Steps at each instruction set level, where that was wanted."""
    model: str
    """The line in which the server says what it serves."""
    first_tokens: list[FirstToken]
    answers: list[Answers]

    @property
    def is_disturbed(self) -> bool:
        """Whether other programs computed."""
        return self.load > _BUSY * self.processors


def bench_text(report: BenchReport) -> str:
    """Returns a line for each figure, and what to know about them."""
    rows = [*_rows(report)]
    width = max(len(name) for name, _ in rows)
    lines = [report.model, "", *(f"{name:{width}}  {text}" for name, text in rows), ""]
    if report.steps:
        lines += [_steps_text(report.steps), ""]
    lines.append("A client on this machine measured over gRPC, without the gateway, draft tokens or caches.")
    if report.is_disturbed:
        busy = f"other programs were computing (load {report.load:.1f} on {report.processors} processors)"
        lines.append(f"Do not compare these figures: {busy}, which lowers all of them.")
    return "\n".join(lines)


def _steps_text(steps: Sequence[StepShare]) -> str:
    """Returns a row for each kind of step and type of weights, and a column for each level."""
    cells = {
        (each.step, each.weights, each.level): f"{each.milliseconds:.1f} ms ({100 * each.share:.0f} %)"
        for each in steps
    }
    rows, levels = dict.fromkeys(key[:2] for key in cells), dict.fromkeys(each.level for each in steps)
    shown = table(
        ["step of the engine", *levels],
        [
            [f"{step}, {weights}", *(cells.get((step, weights, level), "–") for level in levels)]
            for step, weights in rows
        ],
    )
    return f"{shown}\nIn parentheses: the share of memory's read rate, or of the level's arithmetic units."


def _rows(report: BenchReport) -> Iterator[tuple[str, str]]:
    limits = report.limits
    threads = f"{limits.num_threads} thread{'s' * (limits.num_threads > 1)}"
    yield "memory", f"{limits.read_bytes_per_second / 1e9:.1f} GB/s read by {threads}"
    yield "arithmetic", f"{limits.flops_per_second / 1e12:.2f} TFLOP/s ({limits.units})"
    for first in report.first_tokens:
        content = f", with {first.content}" if first.content else ""
        yield "first token", f"{first.seconds * 1e3:.0f} ms after {first.prompt_tokens} tokens{content}"
    for answers in report.answers:
        together = "one answer" if answers.at_once == 1 else f"{answers.at_once} answers at once, together"
        yield "tokens/s", f"{answers.tokens_per_second:.{0 if answers.tokens_per_second >= 10 else 1}f} for {together}"
