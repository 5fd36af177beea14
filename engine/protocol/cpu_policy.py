"""CPU scheduling policies for hosts where the front end and the engine share few processors.

An engine step is as fast as its slowest thread, so preempting one thread delays all of them. A process under
SCHED_BATCH does not preempt others when it wakes; it runs at the next scheduler tick, a few milliseconds later. Unlike
a higher nice value or SCHED_IDLE, the policy can be reverted without privileges, which a spare engine does when it is
needed, and an engine when it was started by a front end under this policy. OpenMP's wait policy is not changed: its
threads spin between operators, and putting them to sleep instead doubled the duration of a step. `spin_control.py` lets
them sleep while others compete.
"""

import contextlib
import os
import sys
import threading
from pathlib import Path

MAX_FEW_PROCESSORS = 4
"""With more processors, a thread that wakes finds one that is idle or soon will be."""


def use_batch_policy() -> None:
    """Sets SCHED_BATCH for all threads of this process, and for threads and processes that it starts from now on."""
    if sys.platform == "linux":
        _set_policy_of_all(os.SCHED_BATCH)


def use_normal_policy() -> None:
    """Sets SCHED_OTHER for all threads of this process, and for threads and processes that it starts from now on."""
    if sys.platform == "linux":
        _set_policy_of_all(os.SCHED_OTHER)


def lower_thread_priority() -> None:
    """Raises the calling thread's nice value by 5: about a third of the CPU share of a thread of the same process.

    Raising a nice value needs no privileges, but lowering it again does, so this lasts for the thread's lifetime.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + 5)


def _set_policy_of_all(policy: int) -> None:
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # some sandboxes refuse it, which only costs a few milliseconds
            os.sched_setscheduler(int(thread.name), policy, os.sched_param(0))
