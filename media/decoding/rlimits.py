"""What a process that works for others lets itself use. Called in that process itself."""

import math
import resource
from pathlib import Path


def limit_memory(num_bytes: int) -> None:
    """Limits this process's address space for good, and keeps it from writing cores."""
    most = _allowed(resource.RLIMIT_AS, num_bytes)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def memory_in_use() -> int:
    """This process's address space, in bytes."""
    num_pages = int(Path("/proc/self/statm").read_text().split()[0])
    return num_pages * resource.getpagesize()


def limit_time(cpu_seconds: int) -> None:
    """From now on; what this process has used before does not count. The kernel ends it with SIGXCPU."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = _allowed(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime) + cpu_seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (most, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _allowed(limit: int, most: int) -> int:
    """As much as the limits allow under which this process was started."""
    hard = resource.getrlimit(limit)[1]
    return most if hard == resource.RLIM_INFINITY else min(most, hard)
