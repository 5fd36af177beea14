"""Lets a fork run what this process was started for. Imported before that, by `sitecustomize`; it imports little."""

import _socket
import array
import contextlib
import marshal
import os
import signal
import sys

_FRONT_ENDS = ("glimpse.server.processes.front_end",)
_ENGINES = (
    "glimpse.engine.worker.process",
    "glimpse.engine.worker.rank",
    "glimpse.engine.worker.loading.check_serving",
)


def run_as_fork() -> None:
    """Returns if this process runs another module, or another Python, or if there is no server."""
    front_ends, engines, prefix = os.environ["GLIMPSE_TESTS_FORK_SERVERS"].split(" ", 2)
    module = sys.orig_argv[2] if sys.orig_argv[1:2] == ["-m"] else ""
    if prefix != os.path.realpath(sys.prefix) or module not in (*_FRONT_ENDS, *_ENGINES):
        return
    address = engines if module in _ENGINES else front_ends
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    try:
        connection.connect(f"\0{address}")
    except OSError:
        return
    files: list[int] = []
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - pathlib takes 10 ms
        with contextlib.suppress(OSError):  # the listing's own
            if os.get_inheritable(int(name)):
                files.append(int(name))
    message = marshal.dumps((sys.orig_argv[1:], dict(os.environ), os.getcwd(), files))  # noqa: PTH109
    connection.sendmsg([message], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", files))])
    for each in (signal.SIGINT, signal.SIGTERM):  # as both do
        signal.signal(each, signal.SIG_IGN)
    for each in files:
        os.close(each)
    connection.recv(16)  # the fork's process id
    status = int(connection.recv(16) or b"1")
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)
