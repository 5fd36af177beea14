"""The spare engine process: when there is one, and what becomes of it."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from glimpse.engine.client import spare, supervisor
from glimpse.engine.client.supervisor import EngineState
from glimpse.native.process_table import is_alive
from tests.engine.client.scripted import Engine
from tests.paths import ROOT
from tests.waiting import until


@pytest.fixture
async def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Engine]:
    """An engine with a spare. A restart without the spare would take too long for its test."""
    monkeypatch.setattr(supervisor, "INITIAL_BACKOFF_SECONDS", 1000.0)
    monkeypatch.setattr(supervisor, "MAX_BACKOFF_SECONDS", 2000.0)
    monkeypatch.setattr(spare, "INITIAL_BACKOFF_SECONDS", 0.01)
    engine = Engine(tmp_path, "ready", keep_spare=True)
    await engine.client.start()
    await until(lambda: len(engine.pids) == 2)
    yield engine
    await engine.client.stop()


async def test_spare_replaces_a_killed_engine_at_once(engine: Engine) -> None:
    os.kill(engine.pids[0], signal.SIGKILL)
    await until(lambda: engine.states == [EngineState.READY, EngineState.RESTARTING, EngineState.READY])
    assert engine.client.pid == engine.pids[1]
    await until(lambda: len(engine.pids) == 3)  # the next spare
    assert engine.client.pid == engine.pids[1]


async def test_spare_that_dies_is_replaced(engine: Engine) -> None:
    os.kill(engine.pids[1], signal.SIGKILL)
    await until(lambda: len(engine.pids) == 3)
    assert engine.states == [EngineState.READY]
    os.kill(engine.pids[0], signal.SIGKILL)
    await until(lambda: len(engine.states) == 3)
    assert engine.client.pid == engine.pids[2]


async def test_stop_ends_the_spare(engine: Engine) -> None:
    await engine.client.stop()
    assert not any(map(is_alive, engine.pids))


async def test_engines_that_die_again_and_again_wait(engine: Engine) -> None:
    os.kill(engine.pids[0], signal.SIGKILL)
    await until(lambda: len(engine.pids) == 3)
    os.kill(engine.pids[1], signal.SIGKILL)
    await until(lambda: engine.client.state is EngineState.RESTARTING)
    await asyncio.sleep(0.1)
    assert engine.client.state is EngineState.RESTARTING
    assert is_alive(engine.pids[2])
    await engine.client.stop()
    assert not any(map(is_alive, engine.pids))


async def test_spare_ends_with_its_front_end(tmp_path: Path) -> None:
    code = f"""
import asyncio
from pathlib import Path
from tests.engine.client.scripted import Engine
from glimpse.native.process_table import is_alive
from tests.waiting import until

async def main():
    engine = Engine(Path({str(tmp_path)!r}), "ready", keep_spare=True)
    await engine.client.start()
    await until(lambda: len(engine.pids) >= 2)
    print("started", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
    front_end = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    assert front_end.stdout is not None
    assert await front_end.stdout.readline() == b"started\n"
    pids = [int(line) for line in (tmp_path / "starts").read_text().split()]
    front_end.kill()
    await front_end.wait()
    await until(lambda: not any(map(is_alive, pids)))
