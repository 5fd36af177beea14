"""Who gives way where a front end and an engine share few processors. Knows Linux' scheduling classes.

An engine's step is as fast as its slowest thread: each interruption of one is waited for by all. A process of the batch
class interrupts nobody when it wakes and has its turn at the next tick, a few milliseconds later. Unlike niceness the
class can be left again without privileges, as an engine does that a front end of this class has started. How OpenMP
waits is left as it is: its threads spin between two operators; put to sleep instead, they took twice as long a step.
"""

import contextlib
import os
import sys
import threading

MAX_FEW_PROCESSORS = 4
"""With more, whoever wakes finds one that is free or soon is."""


def num_processors() -> int:
    """Processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def use_batch_policy() -> None:
    """Puts the calling thread, and the threads and processes that it starts from now on, into the batch class."""
    if sys.platform == "linux":
        _choose(os.SCHED_BATCH)


def use_normal_policy() -> None:
    """Takes `use_batch_policy` back for the calling thread and what it starts from now on."""
    if sys.platform == "linux":
        _choose(os.SCHED_OTHER)


def lower_thread_priority() -> None:
    """Gives the calling thread, for good, about a third of the time that another of its process has beside it."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + 5)


def _choose(policy: int) -> None:
    with contextlib.suppress(OSError):  # some sandboxes refuse it; it is a matter of milliseconds
        os.sched_setscheduler(0, policy, os.sched_param(0))
