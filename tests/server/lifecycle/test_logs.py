"""Logs that nobody reads stop nobody: lines are dropped and counted. A terminal shows the RPCs that failed."""

import json
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

PROGRAM = """
import logging, sys
from glimpse import log_writer
from glimpse.server.telemetry.metrics import Metrics

log_writer._MAX_WAITING = 100
{configure}
for number in range(2000):
    logging.getLogger("test").info("line %d", number)
print(Metrics().registry.get_sample_value("glimpse_log_lines_dropped_total"), flush=True)
sys.stdin.read()
"""
FRONT_END = "from glimpse.server.lifecycle.logs import configure_logging; configure_logging('INFO')"
ENGINE = "from glimpse.engine.worker.child_process import _configure_logging; _configure_logging('engine')"
BOTH = pytest.mark.parametrize("configure", [FRONT_END, ENGINE], ids=["front end", "engine"])


def start(configure: str) -> tuple[subprocess.Popen[bytes], float]:
    """Returns a process that has logged 2000 lines, though nothing has read them, and how many it has dropped."""
    command = [sys.executable, "-c", PROGRAM.format(configure=configure)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    return process, float(process.stdout.readline())


RPCS = """
import sys
import structlog
from glimpse.server.lifecycle.logs import configure_logging
configure_logging(sys.argv[1])
access = structlog.get_logger("access")
access.info("rpc", method="/Answered", code="OK")
access.info("rpc", method="/Refused", code="INVALID_ARGUMENT")
access.debug("rpc", method="/Infrastructure", code="OK")
structlog.get_logger("other").info("rpc", method="/Other", code="OK")
"""


def written(program: str, *arguments: str, is_terminal: bool) -> str:
    """Returns what a program writes to standard error: at most as much as a terminal holds that nobody reads."""
    reader, writer = pty.openpty() if is_terminal else os.pipe()
    with os.fdopen(reader, "rb", buffering=0) as screen:
        subprocess.run([sys.executable, "-c", program, *arguments], stderr=writer, timeout=60, check=True)
        os.close(writer)
        text = b""
        with suppress(OSError):  # Linux reports the end of a terminal as an error.
            while data := screen.read(1 << 16):
                text += data
    return text.decode()


@pytest.mark.parametrize(
    ("level", "is_terminal", "shown"),
    [
        ("info", True, ["/Refused", "/Other"]),
        ("debug", True, ["/Answered", "/Refused", "/Infrastructure", "/Other"]),
        ("warning", True, []),
        ("info", False, ["/Answered", "/Refused", "/Other"]),
    ],
)
def test_a_terminal_shows_the_rpcs_that_failed(level: str, is_terminal: bool, shown: list[str]) -> None:
    assert re.findall(r"/[A-Z]\w+", written(RPCS, level, is_terminal=is_terminal)) == shown


@BOTH
def test_a_log_that_is_read_late_tells_how_many_lines_are_missing(configure: str) -> None:
    process, num_dropped = start(configure)
    _, written = process.communicate(timeout=60)
    events = [json.loads(line)["event"] for line in written.splitlines()]
    numbers = [int(event.removeprefix("line ")) for event in events if event.startswith("line ")]
    missing = [int(event.partition(" lines of the log were dropped")[0]) for event in events if "dropped" in event]
    assert numbers == sorted(numbers)
    assert len(numbers) > 100
    assert sum(missing) == num_dropped > 0
    assert len(numbers) + num_dropped == 2000


FULL = """
import logging, resource
from glimpse import log_writer

log_writer._FLUSH_SECONDS = 60
{configure}
(log,) = logging.getLogger().handlers
for limit in (4096, resource.RLIM_INFINITY):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    for number in range(100):
        logging.getLogger("test").info("line %d", number)
    log.flush()
print(log.num_dropped)
"""


@BOTH
def test_lines_that_the_disk_has_no_room_for_are_counted(configure: str, tmp_path: Path) -> None:
    with (path := tmp_path / "log").open("wb") as log:
        command = [sys.executable, "-c", FULL.format(configure=configure)]
        num_dropped = int(subprocess.run(command, stdout=subprocess.PIPE, stderr=log, check=True).stdout)
    lines = path.read_text().splitlines()
    cut = [line for line in lines if not line.endswith("}")]
    events = [json.loads(line)["event"] for line in lines if line not in cut]
    assert len(cut) == 1, "the last that fits in part"
    numbered = [event for event in events if event.startswith("line ")]
    assert numbered[-100:] == [f"line {number}" for number in range(100)]
    assert len(numbered) + num_dropped == 200
    assert [event.partition(" lines")[0] for event in events if event not in numbered] == [str(num_dropped)]


@BOTH
def test_a_process_ends_whose_log_nobody_reads(configure: str) -> None:
    process, _ = start(configure)
    with process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=60) == 0
