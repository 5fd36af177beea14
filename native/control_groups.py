"""Linux's control groups of this process, which hold a container's limits."""

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
