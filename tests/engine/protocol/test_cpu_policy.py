"""Linux scheduling policies and thread priorities, tested in child processes."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="scheduling policies are specific to Linux")

SWITCH_POLICIES = """
import os
from glimpse.engine.protocol.cpu_policy import use_batch_policy, use_normal_policy
use_batch_policy()
print(os.sched_getscheduler(0) == os.SCHED_BATCH)
use_normal_policy()
print(os.sched_getscheduler(0) == os.SCHED_OTHER)
"""


def test_switches_to_the_batch_policy_and_back():
    process = subprocess.run(
        [sys.executable, "-c", SWITCH_POLICIES], capture_output=True, text=True, timeout=60, check=True
    )
    assert process.stdout.split() == ["True", "True"]


LOWER_PRIORITY = """
import os
from concurrent.futures import ThreadPoolExecutor
from glimpse.engine.protocol.cpu_policy import lower_thread_priority
threads = ThreadPoolExecutor(1, initializer=lower_thread_priority)
own = os.getpriority(os.PRIO_PROCESS, 0)
print(threads.submit(lambda: os.getpriority(os.PRIO_PROCESS, 0)).result() > own)
print(os.getpriority(os.PRIO_PROCESS, 0) == own)
"""


def test_lowers_the_priority_of_one_thread_only():
    process = subprocess.run(
        [sys.executable, "-c", LOWER_PRIORITY], capture_output=True, text=True, timeout=60, check=True
    )
    assert process.stdout.split() == ["True", "True"]
