"""CPU time and memory of a server's processes, from /proc. Linux only."""

import os
from pathlib import Path

from glimpse.native.process_table import stat

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


def cpu_seconds(pids: list[int]) -> float:
    """Returns user and system time of these processes and of their ended children."""
    stats = (stat(pid) for pid in pids)
    return sum(sum(map(int, fields[11:15])) for fields in stats if fields) / _TICKS_PER_SECOND


def peak_rss_mib(pids: list[int]) -> float:
    """Returns the sum of the processes' peak resident memory; shared pages count in each."""
    return sum(_peak_kib(pid) for pid in pids) / 1024


def _peak_kib(pid: int) -> int:
    try:
        lines = (_PROC / str(pid) / "status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)
