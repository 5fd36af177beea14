"""A process to fork: `python -m tests.fork_server FD MODULE…` imports the modules and serves the listening socket FD.

It has one thread and ends with its standard input. A client sends what the fork shall run and its open files. It gets
the fork's process id, and then its exit status, negative after a signal. When the client is gone, the fork is killed.
"""

import array
import atexit
import contextlib
import fcntl
import gc
import importlib
import marshal
import os
import runpy
import select
import selectors
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

_MAX_MESSAGE, _MAX_FILES = 1 << 17, 64
_ABOVE = 512
"""More than the number of any open file, here and in a client."""


@dataclass(frozen=True, slots=True)
class _Request:
    arguments: list[str]
    """Arguments of Python itself."""
    environment: dict[str, str]
    folder: str
    files: dict[int, int]
    """Number of each open file in the client → here."""


class _Server:
    def __init__(self, listening: socket.socket) -> None:
        self._selector = selectors.DefaultSelector()
        self._open: dict[int, socket.socket] = {}
        self._add(listening, self._accept)
        self._listening = listening
        self._forks: set[int] = set()
        """Descriptors of their processes."""
        self._selector.register(0, selectors.EVENT_READ, self._stop)

    def run(self) -> _Request:
        """Returns in forks alone."""
        while True:
            for key, _ in self._selector.select():
                is_open = self._selector.get_map().get(key.fd) is key
                if is_open and (request := key.data()) is not None:
                    return request

    def _add(self, opened: socket.socket, on_readable: Callable[[], _Request | None]) -> None:
        self._open[opened.fileno()] = opened
        self._selector.register(opened, selectors.EVENT_READ, on_readable)

    def _accept(self) -> None:
        connection, _ = self._listening.accept()
        self._add(connection, partial(self._fork, connection))

    def _fork(self, connection: socket.socket) -> _Request | None:
        request = _received(connection)
        if request is None:
            self._close(connection)
        elif (pid := os.fork()) == 0:
            self._selector.close()
            for each in self._open.values():
                each.detach()
            return request
        else:
            for each in request.files.values():
                os.close(each)
            self._send(connection, pid)
            ended = os.pidfd_open(pid)
            self._forks.add(ended)
            self._selector.register(ended, selectors.EVENT_READ, partial(self._end, connection, pid, ended))
            self._selector.modify(connection, selectors.EVENT_READ, partial(self._kill, connection, ended))
        return None

    def _kill(self, connection: socket.socket, ended: int) -> None:
        """Kills the fork of a client that was killed."""
        self._selector.unregister(connection)
        signal.pidfd_send_signal(ended, signal.SIGKILL)

    def _stop(self) -> None:
        for each in self._forks:
            signal.pidfd_send_signal(each, signal.SIGKILL)
        sys.exit()

    def _end(self, connection: socket.socket, pid: int, ended: int) -> None:
        self._selector.unregister(ended)
        self._forks.remove(ended)
        os.close(ended)
        self._send(connection, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        self._close(connection)

    def _send(self, connection: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError):  # the client is gone
            connection.send(str(number).encode())

    def _close(self, connection: socket.socket) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(connection)
        del self._open[connection.fileno()]
        connection.close()


def _received(connection: socket.socket) -> _Request | None:
    numbers = array.array("i")
    body, ancillary, _, _ = connection.recvmsg(_MAX_MESSAGE, socket.CMSG_SPACE(_MAX_FILES * numbers.itemsize))
    for _, _, data in ancillary:
        numbers.frombytes(data)
    if not body:
        return None
    arguments, environment, folder, files = marshal.loads(body)
    return _Request(arguments, environment, folder, dict(zip(files, numbers, strict=True)))


def _become(request: _Request) -> None:
    """Makes this fork what the client would be."""
    files = {there: fcntl.fcntl(here, fcntl.F_DUPFD, _ABOVE) for there, here in request.files.items()}
    os.closerange(0, _ABOVE)
    for there, here in files.items():
        os.dup2(here, there)
        os.close(here)
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.folder)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored if the tests run under `nohup`
    match request.arguments:
        case ["-m", module, *options]:
            sys.path[0] = request.folder
            sys.argv = [module, *options]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case ["-c", code, *options]:
            sys.path[0] = ""
            sys.argv = ["-c", *options]
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        case [script, *options]:
            sys.path[0] = str(Path(script).parent)
            sys.argv = [script, *options]
            runpy.run_path(script, run_name="__main__")
        case _:
            raise ValueError("expected a program, got none")


def _run(request: _Request) -> None:
    """Runs a fork's program, and ends at once: to take down what has been imported takes Python 0.2 s."""
    try:
        _become(request)
    except SystemExit as ended:
        if isinstance(ended.code, str):
            raise
        status = ended.code or 0
    else:
        status = 0
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    sys.stdout.flush()
    os._exit(status)


def main() -> None:
    listening = socket.socket(fileno=int(sys.argv[1]))
    select.select([listening, 0], [], [])  # what nobody asks for is not imported
    gc.disable()
    for each in sys.argv[2:]:
        importlib.import_module(each)
    gc.freeze()
    gc.enable()
    _run(_Server(listening).run())


if __name__ == "__main__":
    main()
