"""A client of an engine process that follows a script."""

import math
import sys
from collections.abc import Callable
from pathlib import Path

from glimpse.engine.client.engine_client import EngineClient
from glimpse.engine.client.supervisor import EngineState
from glimpse.engine.protocol.config import EngineConfig
from glimpse.engine.protocol.messages import Loading, StepStats
from tests.paths import ROOT

SCRIPTED_ENGINE = ROOT / "tests" / "engine" / "scripted_engine.py"


class Engine:
    """A client of a scripted engine, and what its callbacks received."""

    def __init__(
        self,
        folder: Path,
        *scripts: str,
        on_stats: Callable[[StepStats], None] | None = None,
        max_silence_seconds: float = math.inf,
        keep_spare: bool = False,
    ) -> None:
        self.states: list[EngineState] = []
        self.loading: list[Loading] = []
        self.stats: list[StepStats] = []
        self.starts_file = folder / "starts"
        self.client = EngineClient(
            EngineConfig(model_path="script"),
            command=scripted_command(folder, *scripts),
            on_state=lambda state, _reason: self.states.append(state),
            on_loading=self.loading.append,
            on_stats=on_stats or self.stats.append,
            max_silence_seconds=max_silence_seconds,
            keep_spare=keep_spare,
        )

    @property
    def pids(self) -> list[int]:
        """Process ids of all processes that were started."""
        return [int(line) for line in self.starts_file.read_text().split()]


def scripted_command(folder: Path, *scripts: str) -> list[str]:
    """Returns the command of an engine that follows the scripts and writes its process ids to `starts` there."""
    return [sys.executable, str(SCRIPTED_ENGINE), str(folder / "starts"), *scripts]
