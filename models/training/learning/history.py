"""What training is behind a checkpoint: kept beside its weights, so that it can be told and gone on from."""

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
    """Of all stretches together."""

    step: int
    """The next."""
    samples: int
    seconds: Mapping[str, float]
    """Machine → how long."""
    plan: Plan

    @staticmethod
    def of(folder: Path, state: State) -> "History":
        """That of a training folder, by its log."""
        samples, seconds = totals(read_log(folder))
        return History(step=state.step, samples=samples, seconds=seconds, plan=state.plan)

    def save(self, checkpoint: Path) -> None:
        """Writes it beside a checkpoint's weights."""
        (checkpoint / FILE).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    def log(self, folder: Path) -> None:
        """Begins the log of a training folder that goes on from it: a stretch for each machine."""
        # Each line is the end of a stretch to who reads it, as the next says less time or another machine.
        lines = [
            {"step": self.step, "samples": 0, "seconds": seconds, "machine": machine, "loss": {}}
            for machine, seconds in self.seconds.items()
        ]
        lines[-1]["samples"] = self.samples
        (folder / LOG).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def load_history(checkpoint: Path) -> History:
    """What `History.save` wrote."""
    document = json.loads((checkpoint / FILE).read_text(encoding="utf-8"))
    return History(plan=Plan(**document.pop("plan")), **document)


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The lines of a training folder's log."""
    return [json.loads(line) for line in (folder / LOG).read_text(encoding="utf-8").splitlines()]


def totals(lines: Sequence[Mapping[str, Any]]) -> tuple[int, dict[str, float]]:
    """Samples, and seconds by machine, of a log whose lines count from the beginning of their stretch."""
    seconds: dict[str, float] = {}
    samples = 0
    for line, following in zip(lines, [*lines[1:], None], strict=True):
        if following is None or following["seconds"] < line["seconds"] or following["machine"] != line["machine"]:
            samples += line["samples"]
            seconds[line["machine"]] = seconds.get(line["machine"], 0.0) + line["seconds"]
    return samples, seconds
