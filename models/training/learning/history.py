"""The training history of a checkpoint, stored with its weights."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from models.training.learning.plan import Plan
from models.training.learning.progress import LOG
from models.training.learning.state import State

FILE = "training.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Over all runs."""

    step: int
    """The next step."""
    samples: int
    seconds: Mapping[str, float]
    """Machine → seconds."""
    plan: Plan

    @staticmethod
    def of(folder: Path, state: State) -> "History":
        """Reads the history of a training folder from its log."""
        samples, seconds = totals(read_log(folder))
        return History(step=state.step, samples=samples, seconds=seconds, plan=state.plan)

    def save(self, checkpoint: Path) -> None:
        """Writes it next to a checkpoint's weights."""
        (checkpoint / FILE).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    def log(self, folder: Path) -> None:
        """Starts the log of a training folder that continues from it, with a run per machine."""
        # A reader takes each line for the end of a run, because the next has a smaller count or another machine.
        lines = [
            {"step": self.step, "samples": 0, "seconds": seconds, "machine": machine, "loss": {}}
            for machine, seconds in self.seconds.items()
        ]
        lines[-1]["samples"] = self.samples
        (folder / LOG).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def load_history(checkpoint: Path) -> History:
    """Loads what `History.save` wrote."""
    document = json.loads((checkpoint / FILE).read_text(encoding="utf-8"))
    return History(plan=Plan(**document.pop("plan")), **document)


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Returns the lines of a training folder's log."""
    return [json.loads(line) for line in (folder / LOG).read_text(encoding="utf-8").splitlines()]


def totals(lines: Sequence[Mapping[str, Any]]) -> tuple[int, dict[str, float]]:
    """Returns samples, and seconds by machine, from a log whose lines count from the start of their run."""
    seconds: dict[str, float] = {}
    samples = 0
    for line, following in zip(lines, [*lines[1:], None], strict=True):
        if following is None or _starts_a_run(following, line):
            samples += line["samples"]
            seconds[line["machine"]] = seconds.get(line["machine"], 0.0) + line["seconds"]
    return samples, seconds


def _starts_a_run(line: Mapping[str, Any], previous: Mapping[str, Any]) -> bool:
    """Whether a count fell: counts grow within a run, and a short run after a shorter one is told by its samples."""
    counts_restarted = line["seconds"] < previous["seconds"] or line["samples"] < previous["samples"]
    return counts_restarted or line["machine"] != previous["machine"]
