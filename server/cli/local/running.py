"""Servers that run on this machine. Each keeps a file about itself, which it holds locked as long as it lives."""

import fcntl
import os
import platform
import re
import signal
import socket
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from glimpse.native.compiler import user_folder
from glimpse.native.process_table import family, is_alive, proportional_bytes

_POLL_SECONDS = 0.1


class RunningServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server that serves."""

    pid: int
    names: tuple[str, ...]
    """Names of its model, as requests give them."""
    folder: str
    """Folder of its checkpoint."""
    target: str
    """HOST:PORT of gRPC."""
    uses_tls: bool
    http_url: str | None
    """URL of the gateway; None if there is none."""
    metrics_url: str
    since: float
    """When it began to serve, in seconds since the epoch."""
    host: str = platform.node()
    """Name of the machine: home folders may be shared."""

    def serves(self, model: str) -> bool:
        """Whether it serves this model: a name, or a folder."""
        return model in self.names or str(Path(model).expanduser().resolve()) == self.folder


def state_folder() -> Path:
    """Returns the folder for what commands remember."""
    return user_folder("XDG_STATE_HOME", ".local/state")


@contextmanager
def listed(server: RunningServer) -> Generator[None]:
    """Lists this process's server for the block. Where the file cannot be written, it serves unlisted."""
    file = _folder() / f"{server.host}-{server.pid}.json"
    unlisted = file.with_suffix(".new")  # until it is locked: others remove files that nobody holds
    with ExitStack() as stack:
        with suppress(OSError):
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            stream = stack.enter_context(unlisted.open("wb"))
            fcntl.flock(stream, fcntl.LOCK_EX)
            stream.write(msgspec.json.encode(server))
            stream.flush()
            stack.callback(unlisted.rename(file).unlink, missing_ok=True)
        yield


def tell_service_manager(state: str) -> None:
    """Sends a state to systemd, if it started this process as a service of the type "notify" (sd_notify(3))."""
    if address := os.environ.get("NOTIFY_SOCKET"):
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.sendto(state.encode(), re.sub("^@", "\0", address))


def running_servers() -> list[RunningServer]:
    """Returns the servers of this user on this machine, the oldest first."""
    return sorted(_read_all(), key=lambda server: server.since)


def _read_all() -> Iterator[RunningServer]:
    for file in _folder().glob(f"{platform.node()}-*.json"):
        with suppress(OSError, msgspec.DecodeError), file.open("rb") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield msgspec.json.decode(stream.read(), type=RunningServer)
            else:
                file.unlink(missing_ok=True)  # it was killed


def _folder() -> Path:
    return state_folder() / "servers"


def stop(server: RunningServer) -> None:
    """Stops a server as Ctrl-C does, and waits until it has ended. Raises PermissionError."""
    with suppress(ProcessLookupError):
        os.kill(server.pid, signal.SIGINT)
    while server in running_servers() or is_alive(server.pid):
        time.sleep(_POLL_SECONDS)


def memory_of(pid: int) -> int:
    """Returns the bytes of memory of a process and of all below it; what several share counts once."""
    return sum(map(proportional_bytes, family(pid)))
