"""The processors and the processor time that this process may use, on Linux and elsewhere, who made them, and the
control groups that bound the process."""

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path("/")
"""Where the system's files are; tests have others."""


def control_groups(controller: str = "", root: Path = ROOT) -> Iterator[Path]:
    """Yields the folders of this process's group and of the groups around it; none where there are no such groups.

    Args:
        controller: a controller of version 1, such as "memory"; by default the groups of version 2.
        root: where the system's files are.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers == controller:
            path = PurePosixPath(name).relative_to("/")
            # In a container the path may name what the container cannot see: its own group is then the mounted one.
            yield from (root / "sys/fs/cgroup" / controller / folder for folder in (path, *path.parents))


def usable_processors() -> frozenset[int]:
    """Returns the numbers of the processors that this process may run on; all where the system does not say."""
    try:
        return frozenset(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no such call
        return frozenset(range(os.cpu_count() or 1))


def num_processors() -> int:
    """Returns how many processors this process may keep busy: those that it may run on, as far as its quota lasts."""
    number, quota = len(usable_processors()), cpu_quota()
    return number if quota is None else min(number, max(1, int(quota)))


def processor_vendor(root: Path = ROOT) -> str:
    """Returns the maker's name as CPUID has it, such as "GenuineIntel"; "" where the system does not say."""
    try:
        description = (root / "proc/cpuinfo").read_text()
    except OSError:
        return ""
    fields = (line.partition(":") for line in description.splitlines())
    return next((value.strip() for name, _, value in fields if name.strip() == "vendor_id"), "")


def cpu_quota(root: Path = ROOT) -> float | None:
    """Returns the processor time that a container's limit grants, in processors. None if there is no limit.

    Reads version 2 of Linux's control groups: the limits of this process's group and of the groups around it.
    """
    quotas = [quota for group in control_groups(root=root) if (quota := _read_quota(group)) is not None]
    return min(quotas, default=None)


def _read_quota(group: Path) -> float | None:
    try:
        return _parse_limit((group / "cpu.max").read_text())
    except OSError:
        return None


def _parse_limit(limit: str) -> float | None:
    """Returns the processors of a limit such as "150000 100000" (microseconds of each period); None for "max"."""
    quota, _, period = limit.strip().partition(" ")
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() and int(period) else None
