"""Resource limits that a worker process sets on itself."""

import math
import resource
from contextlib import suppress
from pathlib import Path

_FIRST_TO_KILL = "1000"
"""Linux' largest `oom_score_adj`."""


def limit_memory(num_bytes: int) -> None:
    """Limits this process's address space permanently and disables core dumps.

    Where memory is short all the same, the kernel kills this process, which costs a request, and not the engine.
    """
    most = _allowed(resource.RLIMIT_AS, num_bytes)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):  # no Linux, or /proc is read-only
        Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_KILL)


def memory_in_use() -> int:
    """Returns the size of this process's address space in bytes."""
    num_pages = int(Path("/proc/self/statm").read_text().split()[0])
    return num_pages * resource.getpagesize()


def limit_time(cpu_seconds: int) -> None:
    """Limits the CPU time from now on. The kernel ends the process with SIGXCPU when it is used up."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = _allowed(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime) + cpu_seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (most, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _allowed(limit: int, most: int) -> int:
    """Returns the limit, capped at the hard limit that this process was started with."""
    hard = resource.getrlimit(limit)[1]
    return most if hard == resource.RLIM_INFINITY else min(most, hard)
