"""The processors that this process may use, on Linux and elsewhere."""

import os


def usable_processors() -> frozenset[int]:
    """Returns the numbers of the processors that this process may run on; all where the system does not say."""
    try:
        return frozenset(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no such call
        return frozenset(range(os.cpu_count() or 1))


def num_processors() -> int:
    """Returns the number of processors that this process may run on."""
    return len(usable_processors())
