"""The campaign finds and ends every process that its servers leave behind, however it was reparented."""

import asyncio
import subprocess
import sys

from tests.chaos.processes import kill_leftovers, marked_environment

_ORPHAN = (
    "import subprocess; print(subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))"
)


def test_orphan_is_killed_and_reported() -> None:
    with marked_environment() as marker:
        subprocess.run([sys.executable, "-c", _ORPHAN], check=True, capture_output=True)
    assert asyncio.run(kill_leftovers(marker, seconds=0.1)) == ["other"]
    assert asyncio.run(kill_leftovers(marker, seconds=30)) == []


def test_processes_that_end_by_themselves_are_not_left_behind() -> None:
    with marked_environment() as marker, subprocess.Popen([sys.executable, "-c", "pass"]):
        assert asyncio.run(kill_leftovers(marker, seconds=30)) == []
