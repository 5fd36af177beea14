"""The scheduling classes in which the product's processes really run."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the classes are Linux'")

TAKE_TURNS = """
import os
from engine.processors import give_way, insist
give_way()
print(os.sched_getscheduler(0) == os.SCHED_BATCH)
insist()
print(os.sched_getscheduler(0) == os.SCHED_OTHER)
"""


def test_a_process_gives_way_and_takes_it_back():
    process = subprocess.run([sys.executable, "-c", TAKE_TURNS], capture_output=True, text=True, timeout=60, check=True)
    assert process.stdout.split() == ["True", "True"]
