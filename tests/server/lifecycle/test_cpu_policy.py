"""With few processors the server and its gateway run at lower priority than the engine, also after a restart."""

import os
import sys
from pathlib import Path

import pytest

from glimpse.engine.protocol.cpu_policy import MAX_FEW_PROCESSORS
from tests.e2e.stack import Served, children
from tests.server.serving import served
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the classes are Linux'")


def scheduling_classes(process: int) -> set[int]:
    return {os.sched_getscheduler(int(thread.name)) for thread in Path(f"/proc/{process}/task").iterdir()}


def engine_classes(server: Served) -> set[int]:
    (engine,) = children(server.process.pid, "glimpse.engine.worker.process")
    return scheduling_classes(engine)


def test_server_runs_at_lower_priority_than_its_engine(tiny_checkpoint: Path, tmp_path: Path) -> None:
    # The server inherits this thread's processors.
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:MAX_FEW_PROCESSORS])
    try:
        with served(tiny_checkpoint, tmp_path, forks=False) as server:
            assert scheduling_classes(server.process.pid) == {os.SCHED_BATCH}
            assert engine_classes(server) == {os.SCHED_OTHER}
            server.kill_engine()
            assert eventually(lambda: not server.is_serving())
            assert eventually(server.is_serving)
            assert engine_classes(server) == {os.SCHED_OTHER}
    finally:
        os.sched_setaffinity(0, before)
