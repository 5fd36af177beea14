"""A server that a command starts, which ends with the command or goes on after it. `child` is its program."""

import os
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import BinaryIO, cast

import msgspec

from glimpse.engine.protocol.messages import Loading
from glimpse.server.cli.local.running import state_folder
from glimpse.server.cli.machine.served import wait_or_kill

KEEP = b"k"
"""Byte that lets a server go on without the command that started it."""


class Started(msgspec.Struct, frozen=True, kw_only=True, tag="started"):
    """A server serves."""

    pid: int
    target: str
    """HOST:PORT of gRPC."""
    description: str
    """What it serves, in lines."""


class StartFailed(msgspec.Struct, frozen=True, kw_only=True, tag="start_failed"):
    """A server cannot serve."""

    message: str


@contextmanager
def started_server(settings: str, *, keep: bool, on_loading: Callable[[Loading], None]) -> Generator[Started]:
    """Serves a model for the block. The server ends with this process too, however that ends.

    It has a session of its own, which Ctrl-C at this terminal does not reach, and writes its log to a file.

    Args:
        settings: `Settings` as JSON.
        on_loading: called with the progress of loading.

    Yields:
        what it says of itself.

    Ends the process with a message where the model cannot be served.
    """
    log = state_folder() / "run.log"
    with suppress(OSError):
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with log.open("wb") if os.access(log.parent, os.W_OK) else open(os.devnull, "wb") as stream:  # noqa: PTH123
        process = subprocess.Popen(
            (sys.executable, "-m", "glimpse.server.cli.local.child"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stream,
            start_new_session=True,
        )
    requests, reports = cast("BinaryIO", process.stdin), cast("BinaryIO", process.stdout)
    is_kept = False
    try:
        requests.write(settings.encode() + b"\n")
        requests.flush()
        served = _until_started(reports, on_loading)
        if served is None:
            sys.exit(f"glimpse: the server ended while it started; its log is {log}")
        if keep:
            requests.write(KEEP)
            requests.flush()
        is_kept = keep
        yield served
    finally:
        with suppress(BrokenPipeError):
            requests.close()
        if not is_kept:
            wait_or_kill(process)


def _until_started(reports: BinaryIO, on_loading: Callable[[Loading], None]) -> Started | None:
    """Returns what the server says of itself; None if it has ended."""
    for line in reports:
        message: Loading | Started | StartFailed = msgspec.json.decode(line, type=Loading | Started | StartFailed)
        match message:
            case Loading() as loading:
                on_loading(loading)
            case Started() as served:
                return served
            case StartFailed(message=why):
                sys.exit(why)
    return None
