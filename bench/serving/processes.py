"""CPU time and memory of a server's processes, from /proc. Linux only."""

import os
from collections.abc import Iterator
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


def family(pid: int) -> list[int]:
    """Returns a process and its descendants; empty if it has ended."""
    children: dict[int, list[int]] = {}
    for child, fields in _all_stats():
        children.setdefault(int(fields[1]), []).append(child)
    found = [pid] if (_PROC / str(pid)).exists() else []
    for parent in found:  # grows while it is walked
        found += children.get(parent, [])
    return found


def cpu_seconds(pids: list[int]) -> float:
    """Returns user and system time of these processes and of their ended children."""
    stats = (_stat(pid) for pid in pids)
    return sum(sum(map(int, fields[11:15])) for fields in stats if fields) / _TICKS_PER_SECOND


def peak_rss_mib(pids: list[int]) -> float:
    """Returns the sum of the processes' peak resident memory; shared pages count in each."""
    return sum(_peak_kib(pid) for pid in pids) / 1024


def command_line(pid: int) -> str:
    """Returns the arguments of a process; empty if it has ended."""
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _all_stats() -> Iterator[tuple[int, list[str]]]:
    for folder in _PROC.iterdir():
        if folder.name.isdecimal() and (fields := _stat(int(folder.name))):
            yield int(folder.name), fields


def _stat(pid: int) -> list[str]:
    """Returns the fields of /proc/PID/stat from the third on (the second may contain spaces); empty if it has ended."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _peak_kib(pid: int) -> int:
    try:
        lines = (_PROC / str(pid) / "status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)
