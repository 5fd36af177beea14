"""A client of an engine process that follows a script."""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from glimpse.engine.client.engine_client import EngineClient
from glimpse.engine.client.supervisor import EngineState
from glimpse.engine.protocol.config import EngineConfig
from glimpse.engine.protocol.messages import Loading, StepStats


class Engine:
    """A client of a scripted engine, and what its callbacks received. As a context manager it starts and stops it."""

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
            command=scripted_command(*scripts, starts=self.starts_file),
            on_state=lambda state, _reason: self.states.append(state),
            on_loading=self.loading.append,
            on_stats=on_stats or self.stats.append,
            max_silence_seconds=max_silence_seconds,
            keep_spare=keep_spare,
        )

    async def __aenter__(self) -> Self:
        await self.client.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.client.stop()

    @property
    def pids(self) -> list[int]:
        """Process ids of all processes that were started."""
        return [int(line) for line in self.starts_file.read_text().split()]


def scripted_command(*scripts: str, starts: Path | None = None, step_ms: float = 0.0) -> list[str]:
    """Returns the command of an engine that follows the scripts and writes its process ids to the file `starts`."""
    options = [f"--step-ms={step_ms}", *([f"--starts={starts}"] if starts else [])]
    return [sys.executable, "-m", "tests.engine.scripted_engine", *scripts, *options]
