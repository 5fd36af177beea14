"""The memory that this process can still take, on Linux; what of it is garbage, and what is freed."""

import ctypes
import gc
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path

from glimpse.native.processors import ROOT, control_groups

_KIB = 1024
_MIN_RETURNED_BYTES = 32 << 20


def freeze_garbage() -> None:
    """Exempts all objects that exist now from collections, which would hold a loop for 50 ms and more.

    For processes whose objects stay until the end, once they have started.
    """
    gc.collect()
    gc.freeze()


class FreedMemory:
    """Memory that this process has freed and the C library (glibc) keeps for itself.

    These are blocks of up to 32 MiB between others that are in use: half a gigabyte after a few thousand requests.
    """

    def __init__(self) -> None:
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._least = _resident_bytes() if self._trim else 0

    def give_back(self) -> None:
        """Returns it to the system if this process holds 32 MiB more than it once did.

        Takes about 10 ms, in which threads may wait for memory.
        """
        if self._trim is None:
            return
        if _resident_bytes() > self._least + _MIN_RETURNED_BYTES:
            self._trim(0)
        self._least = min(self._least, _resident_bytes())


def available_memory(node: int | None = None, root: Path = ROOT) -> int | None:
    """Returns the bytes that this process can still take. None where the system does not say.

    The least of what the machine has available, what the limits of the control groups around the process leave (both
    versions of them), and what the NUMA node has. Pages that only cache files count as available.

    Args:
        node: number of the NUMA node that the process takes its memory from; None for all nodes.
        root: where the system's files are.
    """
    machine = _read_table(root / "proc/meminfo").get("MemAvailable")
    if machine is None:
        return None
    return max(0, min((machine * _KIB, *_left_by_groups(root), *_left_on_node(node, root))))


def gib(num_bytes: int) -> str:
    """Returns a size in GiB, as messages tell it."""
    return f"{num_bytes / (1 << 30):.1f} GiB"


def count_oom_kills(root: Path = ROOT) -> int | None:
    """Returns how many processes Linux has killed for lack of memory since it started. None where it does not say."""
    return _read_table(root / "proc/vmstat").get("oom_kill")


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * resource.getpagesize()


def _left_by_groups(root: Path) -> Iterator[int]:
    for group in control_groups(root=root):
        yield from _left_in_group(group, limit="memory.max", usage="memory.current", prefix="")
    for group in control_groups("memory", root):
        # The total_ values include the groups inside, as the usage does.
        yield from _left_in_group(group, limit="memory.limit_in_bytes", usage="memory.usage_in_bytes", prefix="total_")


def _left_in_group(group: Path, *, limit: str, usage: str, prefix: str) -> Iterator[int]:
    """Yields what a group's limit leaves, if it has one."""
    try:
        most, used = ((group / name).read_text().strip() for name in (limit, usage))
    except OSError:
        return
    if most.isdecimal() and used.isdecimal():  # version 2 writes "max" for no limit, version 1 a huge number
        cached = _read_table(group / "memory.stat")
        yield int(most) - int(used) + sum(cached.get(f"{prefix}{kind}_file", 0) for kind in ("active", "inactive"))


def _left_on_node(node: int | None, root: Path) -> Iterator[int]:
    if node is None:
        return
    table = _read_table(root / f"sys/devices/system/node/node{node}/meminfo", skip=f"Node {node} ")
    if "MemFree" in table:
        yield _KIB * sum(table.get(name, 0) for name in ("MemFree", "Active(file)", "Inactive(file)"))


def _read_table(file: Path, skip: str = "") -> Mapping[str, int]:
    """Returns the numbers of a file such as /proc/meminfo or memory.stat, by name; none if it cannot be read.

    Args:
        file: has a name, a number and sometimes a unit in each line.
    """
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return {}
    rows = (line.removeprefix(skip).replace(":", " ").split() for line in lines)
    return {row[0]: int(row[1]) for row in rows if len(row) >= 2 and row[1].isdecimal()}
