"""Progress reports: lines on standard output, and lines of JSON."""

import json
import time
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from glimpse.native.processors import num_processors

REPORT_SECONDS = 20.0
LOG = "log.jsonl"
"""A file of the training folder."""


class Progress:
    """Reports the workers' figures at intervals."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        """
        Args:
            folder: the training folder, whose log is extended.
            names: of the figures, in the order in which they are summed.
        """
        self._log = folder / LOG
        self._machine = machine()
        self._names = names
        self._started = self._reported = time.monotonic()
        self._step: int | None = None
        self._samples = 0

    def report(self, step: int, sums: Tensor, done: float, *, flush: bool) -> None:
        """Reports the figures since the last report, if due.

        Args:
            step: the next one.
            sums: float64 [workers, figures, 2]: sums and numbers, which begin anew after a report.
            done: the share of the run that is done, 0 … 1.
            flush: report in any case.
        """
        now = time.monotonic()
        if self._step is None:
            self._step = step
        if step == self._step or (now - self._reported < REPORT_SECONDS and not flush):
            return
        totals = dict(zip(self._names, sums.sum(dim=0).tolist(), strict=True))
        sums.zero_()
        samples = int(totals.pop("samples")[0])
        self._samples += samples
        seconds = now - self._reported
        losses = {name: round(total / count, 4) for name, (total, count) in totals.items() if count}
        line = {"step": step, "samples": self._samples, "seconds": round(now - self._started, 1)}
        line |= {"machine": self._machine, "loss": losses}
        with self._log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        rates = f"{(step - self._step) / seconds:.2f} steps/s, {samples / seconds:.0f} samples/s"
        left = (now - self._started) * (1 - done) / done if done else 0.0
        told = "  ".join(f"{name} {loss:.3f}" for name, loss in losses.items())
        print(f"step {step}  {rates}  {left / 60:.0f} min left | {told}", flush=True)
        self._step, self._reported = step, now


def machine() -> str:
    """Names the machine."""
    names = [line.split(":")[1].strip() for line in _cpu_info() if line.startswith("model name")]
    cores = num_processors()
    return f"{cores} cores of an {names[0]}" if names else f"{cores} cores"


def _cpu_info() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []
