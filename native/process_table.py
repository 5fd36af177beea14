"""The processes of this machine, as Linux' /proc tells them: who descends from whom, and what they hold."""

import re
import resource
from pathlib import Path

_PROC = Path("/proc")
_KIB = 1024


def stat(pid: int) -> list[str]:
    """Returns the fields of /proc/PID/stat from the third on: the second may have spaces. Empty if it has ended."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def is_alive(pid: int) -> bool:
    """Whether a process lives. A zombie does not: its parent has not asked for its status, or it is reaped late."""
    fields = stat(pid)
    return bool(fields) and fields[0] != "Z"


def pids() -> list[int]:
    """Returns all processes; none where there is no /proc."""
    return [int(folder.name) for folder in _PROC.glob("[0-9]*")]


def family(pid: int) -> list[int]:
    """Returns a process and all that descend from it, parents first; none if it has ended."""
    children: dict[int, list[int]] = {}
    for child in pids():
        if fields := stat(child):
            children.setdefault(int(fields[1]), []).append(child)
    found = [pid] if (_PROC / str(pid)).exists() else []
    for parent in found:  # grows while it is walked
        found += children.get(parent, [])
    return found


def command_line(pid: int) -> str:
    """Returns the arguments of a process, separated by spaces; empty if it has ended."""
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def proportional_bytes(pid: int) -> int:
    """Returns the memory of a process: its own, and its share of what others have too; 0 where it is not told."""
    try:
        rollup = (_PROC / str(pid) / "smaps_rollup").read_text()
    except OSError:
        return 0
    found = re.search(r"^Pss:\s+(\d+) kB", rollup, re.MULTILINE)
    return _KIB * int(found[1]) if found else 0


def resident_bytes(pid: int) -> int:
    """Returns the memory of a process, with all that it shares; 0 if it has ended. Cheaper than the proportional."""
    try:
        return int((_PROC / str(pid) / "statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0
