"""A server of this machine for the time of a command."""

import socket
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager

_STOP_SECONDS = 30.0


@contextmanager
def serving(flags: Sequence[str]) -> Generator[tuple[str, str]]:
    """Serves a model on a free port of this machine.

    Args:
        flags: those of `glimpse serve`.

    Yields:
        its address, HOST:PORT, and the line in which it says what it serves.

    Ends the process where the model cannot be served: the server has said why.
    """
    port = _free_port()
    own = (f"--port={port}", "--metrics-port=0", "--log-level=warning", "--no-spare-engine")
    command = (sys.executable, "-m", "glimpse", "serve", *flags, *own)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            description = "" if process.stdout is None else process.stdout.readline().strip()
            if not description:
                sys.exit(process.wait())
            yield f"127.0.0.1:{port}", description
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
