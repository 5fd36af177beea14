"""Worker processes: how they start and end."""

import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from socket import socket
from typing import TypeAlias

Process: TypeAlias = "subprocess.Popen[bytes]"


def start_worker(
    command: Sequence[str], environment: Mapping[str, str] | None = None, *, connection: socket | None = None
) -> Process:
    """Starts a worker; blocks.

    Args:
        environment: Variables in addition to those of this process.
        connection: What the worker reads and writes as standard input and output. None: two pipes.
    """
    stream = subprocess.PIPE if connection is None else connection.fileno()
    # Libraries that reserve memory per thread would exhaust the address space.
    variables = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"} | dict(environment or {})
    # Ctrl-C reaches a terminal's whole process group; the front end drains requests, for which workers still decode.
    return subprocess.Popen(command, stdin=stream, stdout=stream, env=variables, process_group=0)


def end_worker(process: Process) -> None:
    """Kills a worker, closes its pipes and waits for its end; blocks."""
    process.kill()
    with contextlib.suppress(OSError), process:  # closes the streams and waits
        pass
