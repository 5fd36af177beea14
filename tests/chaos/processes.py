"""The processes of a server, read from /proc: who they are, and what they hold."""

import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from glimpse.native.process_table import (
    command_line,
    family,
    is_alive,
    pids,
    proportional_bytes,
    resident_bytes,
    stat,
)

_PROC = Path("/proc")
_ROLES = {
    "glimpse.engine.worker.process": "engine",
    "glimpse.gateway": "gateway",
    "envoy --config-path": "Envoy",
    "media.": "media workers",
}
FRONT_END = "front end"
_MARKER = "GLIMPSE_CHAOS"
_GONE_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    pid: int
    role: str
    """What it does; the gateway is Envoy's supervisor."""
    age_ticks: int
    """When it started, in ticks since the system did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What processes hold together."""

    memory_bytes: int
    """Proportional set size where the system tells it, else resident set size."""
    num_descriptors: int
    num_threads: int


def tree(root: int) -> list[Process]:
    started = ((pid, stat(pid)) for pid in family(root))
    return [
        Process(pid=pid, role=FRONT_END if pid == root else _role(pid), age_ticks=int(fields[19]))
        for pid, fields in started
        if fields and fields[0] != "Z"
    ]


def is_computing(pid: int) -> bool:
    """Whether a process runs on a processor or waits for one."""
    return stat(pid)[:1] == ["R"]


def holdings(root: int) -> dict[str, Holding]:
    """What the processes of each role hold."""
    found: dict[str, Holding] = {}
    for process in tree(root):
        folder = _PROC / str(process.pid)
        before = found.get(process.role, Holding(memory_bytes=0, num_descriptors=0, num_threads=0))
        found[process.role] = Holding(
            memory_bytes=before.memory_bytes + (proportional_bytes(process.pid) or resident_bytes(process.pid)),
            num_descriptors=before.num_descriptors + _count(folder / "fd"),
            num_threads=before.num_threads + _count(folder / "task"),
        )
    return found


@contextmanager
def marked_environment() -> Generator[bytes]:
    """Gives all processes that are started in the block, and theirs, a variable by which they are found again."""
    os.environ[_MARKER] = secrets.token_hex(8)
    try:
        yield f"{_MARKER}={os.environ[_MARKER]}".encode()
    finally:
        del os.environ[_MARKER]


async def kill_leftovers(marker: bytes, *, seconds: float = _GONE_SECONDS) -> list[str]:
    """Kills the processes with this variable that do not end by themselves within `seconds`; returns their roles."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while _marked(marker):  # noqa: ASYNC110 - /proc is polled
                await asyncio.sleep(0.1)
    leftovers = _marked(marker)
    for pid in leftovers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return [_role(pid) for pid in leftovers]


def _marked(marker: bytes) -> list[int]:
    return [pid for pid in pids() if is_alive(pid) and marker in _environment(pid)]


def _environment(pid: int) -> list[bytes]:
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []  # it has ended, or belongs to somebody else


def _role(pid: int) -> str:
    command = command_line(pid)
    return next((role for words, role in _ROLES.items() if words in command), "other")


def _count(folder: Path) -> int:
    try:
        return sum(1 for _ in folder.iterdir())
    except OSError:
        return 0
