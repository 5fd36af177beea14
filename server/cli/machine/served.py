"""A server of this machine for the time of a command."""

import random
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress

from glimpse.server.processes.ports import free_port

_STOP_SECONDS = 75.0
"""Longer than running requests get when a server stops."""
_PORTS = range(24_000, 32_000)
"""Below those that systems give to clients: until the server listens, a client might get a port of theirs."""
_MAX_PROBES = 100


@contextmanager
def serving(flags: Sequence[str]) -> Generator[tuple[str, str]]:
    """Serves a model on a free port of this machine.

    Yields:
        its address, HOST:PORT, and the line in which it says what it serves.

    Ends the process where the model cannot be served: the server has said why.
    """
    port = port_near("127.0.0.1", 0)
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
            wait_or_kill(process)


def wait_or_kill(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """Waits until a server that was told to stop has ended; kills it where it does not."""
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def port_near(host: str, port: int) -> int:
    """Returns the port, or a free one where it is 0 or taken."""
    wanted = [port] if port else []
    for each in [*wanted, *random.sample(_PORTS, _MAX_PROBES)]:
        with suppress(OSError):
            return free_port(host, each)
    return port  # the host has no port to listen on: the server says so
