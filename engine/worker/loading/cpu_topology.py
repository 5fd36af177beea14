"""The machine's cores and NUMA nodes, as Linux describes them in /sys, and the number of compute threads for them.

A step is as fast as its slowest thread. Two threads of one core share its arithmetic units and its bandwidth, and an
efficiency core is slower than the others, so there is one thread for each physical performance core. With more than two
of them, one is left for the front end, whose work would delay one thread and with it the step.
"""

from collections.abc import Set
from pathlib import Path

SYS = Path("/sys")


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
