"""The machine's cores and NUMA nodes, as Linux describes them in /sys; the number of compute threads, and their node.

A step is as fast as its slowest thread. Two threads of one core share its arithmetic units and its bandwidth, and an
efficiency core is slower than the others, so there is one thread for each physical performance core. With more than two
of them, one is left for the front end, whose work would delay one thread and with it the step.
"""

import contextlib
import ctypes
import os
import platform
from collections.abc import Set
from pathlib import Path

SYS = Path("/sys")
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
"""Number of the system call, by machine; the C library has no function for it."""
_MPOL_BIND = 2
_MAX_NODES = 1024


def default_num_threads(usable: Set[int], quota: float | None, sys: Path = SYS) -> int:
    """Returns the number of compute threads.

    Args:
        usable: processors that the process may run on.
        quota: processor time that the process may use, in processors; None if it is not limited.
        sys: where the machine is described. Without a description each processor counts as a core.
    """
    performance = _performance_processors(usable, sys)
    num_threads = _num_cores(performance, sys)
    others_are_free = performance != usable
    if quota is not None and quota < num_threads + 1:
        num_threads = min(num_threads, max(1, int(quota)))
        others_are_free = False
    return num_threads if others_are_free or num_threads <= 2 else num_threads - 1


def numa_nodes(usable: Set[int], sys: Path = SYS) -> dict[int, frozenset[int]]:
    """Returns the usable processors of each NUMA node that has any, by the node's number."""
    folders = (sys / "devices/system/node").glob("node[0-9]*")
    nodes = {int(folder.name.removeprefix("node")): _read_list(folder / "cpulist") & usable for folder in folders}
    return {number: nodes[number] for number in sorted(nodes) if nodes[number]}


def bind_threads(processors: Set[int]) -> None:
    """Lets all threads of this process, and those that they start, run on these processors only."""
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.sched_setaffinity(int(thread.name), processors)


def bind_memory(node: int) -> None:
    """Takes memory from this node only, for the calling thread and threads that it starts from now on.

    Raises:
        OSError: the system refuses it, as some containers do.
    """
    mask = (ctypes.c_uint8 * (_MAX_NODES // 8))()
    mask[node // 8] = 1 << node % 8
    libc = ctypes.CDLL(None, use_errno=True)
    # The kernel reads one bit less than it is told.
    arguments = (ctypes.c_int(_MPOL_BIND), mask, ctypes.c_ulong(_MAX_NODES + 1))
    if libc.syscall(ctypes.c_long(_SET_MEMPOLICY[platform.machine()]), *arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _performance_processors(usable: Set[int], sys: Path) -> frozenset[int]:
    """Returns the performance cores' processors on Intel's hybrid processors, and all usable ones on others."""
    return _read_list(sys / "devices/cpu_core/cpus") & usable or frozenset(usable)


def _num_cores(processors: Set[int], sys: Path) -> int:
    siblings = sys / "devices/system/cpu"
    return len(
        {
            _read_list(siblings / f"cpu{number}/topology/thread_siblings_list") & processors or frozenset({number})
            for number in processors
        }
    )


def _read_list(file: Path) -> frozenset[int]:
    """Returns the numbers in a list such as "0-3,8"; none if there is no such file."""
    try:
        text = file.read_text()
    except OSError:
        return frozenset()
    numbers: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1) if first else ())
    return frozenset(numbers)
