"""The processes of a server, read from /proc: who they are, and what they hold."""

import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_PAGE_BYTES = 4096
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
    children: dict[int, list[int]] = {}
    started: dict[int, int] = {}
    for pid, parent, ticks in _table():
        children.setdefault(parent, []).append(pid)
        started[pid] = ticks
    found, waiting = list[Process](), [root]
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, ())
        if pid in started:
            role = FRONT_END if pid == root else _role(pid)
            found.append(Process(pid=pid, role=role, age_ticks=started[pid]))
    return found


def is_computing(pid: int) -> bool:
    """Whether a process runs on a processor or waits for one."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] == "R"
    except OSError:
        return False


def resident_bytes(pid: int) -> int:
    """Resident set size; 0 for a process that has ended. Cheap."""
    try:
        return int((_PROC / str(pid) / "statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def holdings(root: int) -> dict[str, Holding]:
    """What the processes of each role hold."""
    found: dict[str, Holding] = {}
    for process in tree(root):
        folder = _PROC / str(process.pid)
        before = found.get(process.role, Holding(memory_bytes=0, num_descriptors=0, num_threads=0))
        found[process.role] = Holding(
            memory_bytes=before.memory_bytes + _memory_bytes(process.pid),
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
    return [pid for pid, _, _ in _table() if marker in _environment(pid)]


def _environment(pid: int) -> list[bytes]:
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []  # it has ended, or belongs to somebody else


def _table() -> Iterator[tuple[int, int, int]]:
    """Yields (pid, parent, start) of all processes."""
    for stat in _PROC.glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        if fields[0] != "Z":
            yield int(stat.parent.name), int(fields[1]), int(fields[19])


def _role(pid: int) -> str:
    try:
        command = (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "other"
    return next((role for words, role in _ROLES.items() if words in command), "other")


def _memory_bytes(pid: int) -> int:
    try:
        lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024
    except (OSError, StopIteration):
        return resident_bytes(pid)


def _count(folder: Path) -> int:
    try:
        return sum(1 for _ in folder.iterdir())
    except OSError:
        return 0
