"""Logs that nobody reads stop nobody: lines are dropped and counted, and the process ends."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import logging, sys
from glimpse import log_writer

log_writer._MAX_WAITING = 100
{configure}
for number in range(2000):
    logging.getLogger("test").info("line %d", number)
print("logged", flush=True)
sys.stdin.read()
"""
FRONT_END = "from glimpse.server.lifecycle.logs import configure_logging; configure_logging('INFO')"
ENGINE = "from glimpse.engine.child_process import _configure_logging; _configure_logging('engine')"
BOTH = pytest.mark.parametrize("configure", [FRONT_END, ENGINE], ids=["front end", "engine"])


def start(configure: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", PROGRAM.format(configure=configure)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"logged\n"  # though nothing has read the lines
    return process


@BOTH
def test_a_log_that_is_read_late_tells_how_many_lines_are_missing(configure: str) -> None:
    _, written = start(configure).communicate(timeout=60)
    events = [json.loads(line)["event"] for line in written.splitlines()]
    numbers = [int(event.removeprefix("line ")) for event in events if event.startswith("line ")]
    missing = [int(event.partition(" lines of the log were dropped")[0]) for event in events if "dropped" in event]
    assert numbers == sorted(numbers)
    assert len(numbers) > 100
    assert missing
    assert len(numbers) + sum(missing) == 2000


@BOTH
def test_a_process_ends_whose_log_nobody_reads(configure: str) -> None:
    with start(configure) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=60) == 0
