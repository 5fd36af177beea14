"""Binding a process to a NUMA node, in child processes, and refusals."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.config import EngineConfig
from glimpse.engine.worker.loading import cpu
from glimpse.engine.worker.loading.load_engine import load_core

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="NUMA nodes are specific to Linux")

BIND = """
import os, threading
from glimpse.engine.worker.loading.cpu_topology import bind_memory, bind_threads
release = threading.Event()
other = threading.Thread(target=release.wait)
other.start()
processor = min(os.sched_getaffinity(0))
bind_threads({processor})
print(all(os.sched_getaffinity(thread) == {processor} for thread in (0, other.native_id)))
release.set()
try:
    bind_memory(0)
except OSError as error:
    print("refused", error)
else:
    print({line.split()[1] for line in open("/proc/self/numa_maps")})
"""


def test_binds_all_threads_and_memory():
    if not Path("/proc/self/numa_maps").exists():
        pytest.skip("this system has no NUMA policies")
    lines = subprocess.run(
        [sys.executable, "-c", BIND], capture_output=True, text=True, timeout=60, check=True
    ).stdout.splitlines()
    assert lines[0] == "True"
    if lines[1].startswith("refused"):
        pytest.skip(lines[1])
    assert lines[1] == "{'bind:0'}"


def load(path: Path, node: int) -> None:
    config = EngineConfig(model_path=str(path), numa_node=node, num_threads=1, kv_cache_bytes=1 << 20)
    load_core(config, on_progress=lambda _stage, _fraction: None)


@pytest.mark.parametrize(
    ("nodes", "expected"), [({0: {0}, 1: {1}}, "expected one of 0, 1"), ({}, "this system names no nodes")], ids=str
)
def test_refuses_a_node_that_does_not_exist(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, nodes: dict[int, set[int]], expected: str
):
    monkeypatch.setattr(cpu, "numa_nodes", lambda _usable: nodes)
    with pytest.raises(CheckpointError, match=f"'--numa-node': expected .*{expected.removeprefix('expected ')}, got 7"):
        load(tiny_checkpoint, 7)


def test_binds_the_engine_before_it_computes(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch):
    calls: list[object] = []
    monkeypatch.setattr(cpu, "numa_nodes", lambda _usable: {0: {0}, 1: {1}})
    monkeypatch.setattr(cpu, "bind_threads", calls.append)
    monkeypatch.setattr(cpu, "bind_memory", calls.append)
    monkeypatch.setattr("torch.set_num_threads", lambda number: calls.append(f"{number} thread"))
    load(tiny_checkpoint, 1)
    assert calls == [{1}, 1, "1 thread"]


def test_continues_where_memory_cannot_be_bound(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    def refuse(_node: int) -> None:
        raise PermissionError(1, os.strerror(1))

    monkeypatch.setattr(cpu, "numa_nodes", lambda _usable: {0: {0}})
    monkeypatch.setattr(cpu, "bind_threads", lambda _processors: None)
    monkeypatch.setattr(cpu, "bind_memory", refuse)
    cpu.bind_to_node(0)
    assert "--numa-node binds the threads only" in caplog.text
