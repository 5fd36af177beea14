"""The files of a batch: requests, checked before any is answered, and results, of which earlier runs made some."""

import fcntl
import os
from collections.abc import Collection, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from glimpse.server.batches.lines import BatchLine, LineResult, parse_line
from glimpse.server.errors import InvalidRequest
from glimpse.usage import UsageError

_BEGINNING = b'{"id":"batch_req_'
"""The first bytes of each line of results."""


def check_requests(path: Path, urls: Collection[str]) -> set[str]:
    """Returns the names of all requests. Raises UsageError for a line that is none, or has the name of another one."""
    names = set[str]()
    for number, request in _numbered(path, urls):
        if request.custom_id in names:
            raise UsageError(
                f"'{path}', line {number}: expected a custom_id of its own, got '{request.custom_id[:64]}' again"
            )
        names.add(request.custom_id)
    if not names:
        raise UsageError(f"'{path}': expected a request in each line, got none")
    return names


def read_requests(path: Path, urls: Collection[str], *, without: Collection[str]) -> Iterator[BatchLine]:
    """Yields the requests, except those of some names. Raises UsageError."""
    return (request for _, request in _numbered(path, urls) if request.custom_id not in without)


def _numbered(path: Path, urls: Collection[str]) -> Iterator[tuple[int, BatchLine]]:
    number = 0
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, parse_line(line, urls)
    except OSError as error:
        raise UsageError(f"'{path}': expected a file of requests: {error.strerror}") from error
    except InvalidRequest as error:
        raise UsageError(f"'{path}', line {number}: {error.message}") from error


@contextmanager
def open_results(path: Path) -> Generator[tuple[BinaryIO, set[str]]]:
    """Opens the results, for more of them, and returns the names of those that they have.

    A line that a crash cut off is removed.

    Raises:
        UsageError: it cannot be written, another process writes it, or it has other lines, which are left as they are.
    """
    if path.exists() and not path.is_file():  # a device may never end
        raise UsageError(f"'{path}': expected a file for results, got another kind of file")
    try:
        with path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.seek(0)
            names, num_bytes = set[str](), 0
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    if line[: len(_BEGINNING)] != _BEGINNING[: len(line)]:
                        raise _no_result(path, number)
                    break
                names.add(_name_of(line, path, number))
                num_bytes += len(line)
            file.truncate(num_bytes)
            file.seek(0, os.SEEK_END)
            yield file, names
    except BlockingIOError as error:
        raise UsageError(f"'{path}': expected a file for this run, but another one writes it") from error
    except OSError as error:
        raise UsageError(f"'{path}': expected a file for results: {error.strerror}") from error


def _name_of(line: bytes, path: Path, number: int) -> str:
    try:
        return msgspec.json.decode(line, type=LineResult).custom_id
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _no_result(path, number) from error


def _no_result(path: Path, number: int) -> UsageError:
    message = f"'{path}', line {number}: expected a result of a batch, got another line; name another file"
    return UsageError(message)
