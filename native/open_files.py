"""The limit of open files of this process and of those that it starts. Connections count as files."""

import resource
import sys

MIN_FILES = 256
"""Fewer are not enough to serve: the processes and their libraries alone have some 50 open."""


MAX_CONNECTIONS = 10_000
"""Connections of clients to a port, where the limit of open files leaves room for as many."""
_OTHER_FILES = 1000
"""Files that a process with so many connections may open in addition."""


class OpenFilesError(Exception):
    """Error of a process that may open too few files."""


def max_files() -> int:
    """Returns the hard limit, up to which `allow_files` raises the other one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def max_connections() -> int:
    """Returns the most connections of clients that the limit of open files leaves room for."""
    num_files = max_files()
    return num_files - min(_OTHER_FILES, num_files // 4)


def allow_files() -> None:
    """Raises the soft limit, 1024 on most systems, to the hard one. Raises OpenFilesError if that is too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if max_files() < MIN_FILES:
        raise OpenFilesError(
            f"expected a limit of at least {MIN_FILES} open files, got {hard}; raise it (`ulimit -Hn`, LimitNOFILE=, "
            "--ulimit nofile=)"
        )
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
