"""The log of the engine's processes: where the front end's is JSON, theirs is too."""

import json
import os
import pty
import re
import socket
import subprocess
import sys

PROGRAM = """
import logging
from glimpse.engine.worker.child_process import inherited_socket

inherited_socket("program", log_name="engine")
log = logging.getLogger("part")
log.info("it holds %d blocks", 8)
try:
    raise ValueError("a reason")
except ValueError:
    log.exception("it failed")
"""


def run(stderr: int) -> bytes:
    """Runs the program, and returns what it writes to standard error if that is a pipe."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-c", PROGRAM, f"--fd={theirs.fileno()}"]
        done = subprocess.run(command, pass_fds=[theirs.fileno()], stderr=stderr, timeout=60, check=True)
    return done.stderr or b""


def test_logs_json_elsewhere_than_on_a_terminal() -> None:
    first, second = map(json.loads, run(subprocess.PIPE).splitlines())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", first.pop("timestamp"))
    assert first == {"event": "it holds 8 blocks", "process": "engine", "logger": "part", "level": "info"}
    assert "ValueError: a reason" in second["exception"]


def test_logs_lines_on_a_terminal() -> None:
    screen, terminal = pty.openpty()
    run(terminal)
    os.close(terminal)
    assert re.match(rb"\d{4}-\d\d-\d\dT\S+Z \[info     \] it holds 8 blocks \[engine\]", os.read(screen, 1 << 16))
    os.close(screen)
