"""The limit of open files of this process and of those that it starts. Connections count as files."""

import resource
import sys

MIN_FILES = 256
"""Fewer are not enough to serve: the processes and their libraries alone have some 50 open."""


class OpenFilesError(Exception):
    """This process may open too few files."""


def max_files() -> int:
    """Returns the hard limit, up to which `allow_files` raises the other one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


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
