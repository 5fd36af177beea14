"""The scheduling classes in which the product's processes really run."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the classes are Linux'")

TAKE_TURNS = """
import os
from glimpse.engine.cpu_policy import use_batch_policy, insist
use_batch_policy()
print(os.sched_getscheduler(0) == os.SCHED_BATCH)
insist()
print(os.sched_getscheduler(0) == os.SCHED_OTHER)
"""


def test_a_process_gives_way_and_takes_it_back():
    process = subprocess.run([sys.executable, "-c", TAKE_TURNS], capture_output=True, text=True, timeout=60, check=True)
    assert process.stdout.split() == ["True", "True"]


STAND_BACK = """
import os
from concurrent.futures import ThreadPoolExecutor
from glimpse.engine.cpu_policy import lower_thread_priority
threads = ThreadPoolExecutor(1, initializer=lower_thread_priority)
own = os.getpriority(os.PRIO_PROCESS, 0)
print(threads.submit(lambda: os.getpriority(os.PRIO_PROCESS, 0)).result() > own)
print(os.getpriority(os.PRIO_PROCESS, 0) == own)
"""


def test_a_thread_stands_back_alone():
    process = subprocess.run([sys.executable, "-c", STAND_BACK], capture_output=True, text=True, timeout=60, check=True)
    assert process.stdout.split() == ["True", "True"]
