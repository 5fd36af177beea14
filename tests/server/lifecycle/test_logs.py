"""Logs that nobody reads stop nobody: lines are dropped and counted, and the process ends."""

import json
import subprocess
import sys

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


@BOTH
def test_a_process_ends_whose_log_nobody_reads(configure: str) -> None:
    process, _ = start(configure)
    with process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=60) == 0
