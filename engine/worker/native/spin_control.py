"""Makes OpenMP's threads spin only while they have their processors to themselves.

Between operators the threads wait for each other. GNU's OpenMP lets them spin for milliseconds, which is fastest on a
quiet machine: sleeping makes a step of a small model half as long again. Beside a busy process, a thread that spins
holds the processor that another thread of its team needs, and steps take ten times as long. It spins only briefly while
it manages more threads than there are processors. So a team of sleeping threads is held while others compete. The
other processes of a server compete while they start; an idle engine notices when they are done.
"""

import ctypes
import functools
import logging
import math
import os
import threading
from collections.abc import Mapping
from pathlib import Path

from glimpse.native.processors import usable_processors

INTERVAL_SECONDS = 0.25
COMPETING_SHARE = 0.2
"""Share of the time that threads could have run, but waited for a processor, from which others count as competing."""
CALM_INTERVALS = 12
"""Intervals in a row without competition after which threads spin again."""

_TASKS = Path("/proc/self/task")
_PROCESSORS = Path("/proc/stat")
_log = logging.getLogger(__name__)


class Competition:
    """Whether other programs compete for the processors of this one.

    How long its threads wait for them says so, and of an engine that is idle, how long anything ran on them.
    """

    def __init__(self) -> None:
        self._num_calm = 0
        self.present = False

    def update(self, run_seconds: float, wait_seconds: float, busy_seconds: float) -> None:
        """Adds an interval.

        Args:
            run_seconds: how long the threads ran, together.
            wait_seconds: how long they waited for a processor.
            busy_seconds: how long the processors were busy with any program, together; nan where that is not known.
        """
        is_idle = run_seconds + wait_seconds < INTERVAL_SECONDS / 2
        if is_idle and not busy_seconds <= COMPETING_SHARE * INTERVAL_SECONDS:
            return  # what ran may compete
        if not is_idle and wait_seconds > COMPETING_SHARE * (run_seconds + wait_seconds):
            self.present, self._num_calm = True, 0
        else:
            self._num_calm += 1
            self.present &= self._num_calm < CALM_INTERVALS


class SleepingTeam:
    """More OpenMP threads than there are processors, which sleep until they are released."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._released: threading.Event | None = None

    def hold(self, wanted: bool) -> None:
        """Starts the team, or ends it."""
        if wanted == (self._released is not None):
            return
        if self._released is not None:
            self._released.set()
            self._released = None
        else:
            self._released = threading.Event()
            threading.Thread(target=self._hold, args=(self._released,), name="openmp team", daemon=True).start()

    def _hold(self, released: threading.Event) -> None:
        self._library.glimpse_start_team(len(usable_processors()) + 1)  # the threads stay as long as this one
        released.wait()


@functools.cache
def start(library: ctypes.CDLL) -> None:
    """Watches for competition from now on, once in a process, where the system says how long threads wait.

    `OMP_WAIT_POLICY` has the last word.
    """
    if "OMP_WAIT_POLICY" not in os.environ and thread_times(_TASKS):
        threading.Thread(
            target=watch, args=(SleepingTeam(library), threading.Event()), name="openmp spin", daemon=True
        ).start()


def watch(team: SleepingTeam, stopped: threading.Event) -> None:
    """Holds the team while others compete, until it is stopped."""
    competition, before, busy_before = Competition(), thread_times(_TASKS), busy_seconds(_PROCESSORS)
    while not stopped.wait(INTERVAL_SECONDS):
        now, busy = thread_times(_TASKS), busy_seconds(_PROCESSORS)
        run, wait = (sum(now[thread][i] - before[thread][i] for thread in now.keys() & before.keys()) for i in (0, 1))
        was_present = competition.present
        competition.update(run, wait, busy - busy_before)
        if competition.present and not was_present:
            _log.info("other programs compete for the processors: threads wait asleep instead of spinning")
        team.hold(competition.present)
        before, busy_before = now, busy


def thread_times(tasks: Path) -> Mapping[str, tuple[float, float]]:
    """Returns how many seconds each thread has run and waited for a processor; nothing where that is not known."""
    times: dict[str, tuple[float, float]] = {}
    for task in tasks.glob("*/schedstat"):
        try:
            run, wait, _ = task.read_text().split()
        except (OSError, ValueError):  # it has just ended
            continue
        times[task.parent.name] = int(run) / 1e9, int(wait) / 1e9
    return times


def busy_seconds(processors: Path) -> float:
    """Returns how long the processors that this process may use were busy, together; nan where that is not known."""
    names, ticks = {f"cpu{number}" for number in usable_processors()}, math.nan
    try:
        lines = [line.split() for line in processors.read_text().splitlines()]
    except OSError:
        return ticks
    # user, nice, system, idle, iowait, irq, softirq, steal
    times = [list(map(int, line[1:9])) for line in lines if line and line[0] in names]
    if times:
        ticks = sum(sum(each) - each[3] - each[4] for each in times)
    return ticks / os.sysconf("SC_CLK_TCK")
