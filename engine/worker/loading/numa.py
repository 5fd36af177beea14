"""Binds this process to a NUMA node: its threads to the node's processors, its memory to the node's."""

import contextlib
import ctypes
import os
import platform
from collections.abc import Set
from pathlib import Path

_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
"""Number of the system call, by machine; the C library has no function for it."""
_MPOL_BIND = 2
_MAX_NODES = 1024


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
