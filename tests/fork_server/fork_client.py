"""Lets a fork run what this process was started for. Imported before that, by `sitecustomize`; it imports little."""

import _socket
import array
import contextlib
import marshal
import os
import signal
import sys

_FRONT_ENDS, _ENGINES, _DECODERS = range(3)
"""Which of the servers forks a module."""
_MODULES = {
    "glimpse.server.processes.front_end": _FRONT_ENDS,
    "glimpse.engine.worker.process": _ENGINES,
    "glimpse.engine.worker.rank": _ENGINES,
    "glimpse.engine.worker.loading.check_serving": _ENGINES,
    "glimpse.media.decoding.worker": _DECODERS,
}


def run_as_fork() -> None:
    """Returns if this process runs another module, or another Python, or if there is no server."""
    *addresses, prefix = os.environ["GLIMPSE_TESTS_FORK_SERVERS"].split(" ", 3)
    if prefix != os.path.realpath(sys.prefix) or sys.orig_argv[1:2] != ["-m"] or sys.orig_argv[2] not in _MODULES:
        return
    address = addresses[_MODULES[sys.orig_argv[2]]]
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
    for each in (signal.SIGINT, signal.SIGTERM):  # as they do, or nobody sends it
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
