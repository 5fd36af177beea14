"""Reports work that holds the front end's event loop for too long. `sitecustomize` imports it in servers under test.

It measures the processor time that the loop's thread takes until it turns, not the time that passes, so that it does
not blame a busy machine. What happens before the server serves may take longer. `tests.loop_watchdog` starts it and
reads its reports.
"""

import asyncio
import sys
import threading
import time
import traceback
from typing import Any

MAX_SECONDS = 0.05
"""On a machine as fast as the one that `_NOMINAL_SECONDS` was measured on; more on slower and busier ones."""
_MAX_COPY_SECONDS = 0.25
"""The bound for gRPC's own code, which copies a message of 64 MiB in one piece, beside others who use the memory."""
_COPYING = "_parse_only ("
"""The innermost Python function meanwhile: the one that waits for a message."""
_LOOP = f"run ({asyncio.runners.__file__}:"
"""The innermost Python function while no function of ours runs, but the loop's own C code and gRPC's. It is not
reported: if the host of a virtual machine stops it for seconds, an idle loop is charged with them."""
_TURN = f"_turn ({__file__}:"
"""The innermost Python function where the looking thread came too late to see another one."""
_NOMINAL_SECONDS = 0.006
"""What the loop of `_slowness` takes on two idle cores of an AMD EPYC."""
_TURN_SECONDS = 0.005
_IDLE_SECONDS = 0.015
"""Between two looks at an idle loop: the tests of a run keep a dozen servers."""
_WORK_SECONDS = 0.001
"""Processor time since its last turn with which a loop is not idle: more than a turn takes."""
_BEGUN_SECONDS = 0.01
"""How much of what an idle loop has begun since the last look counts."""


def _slowness() -> float:
    """Returns how much longer Python takes now than nominally, at least 1: a busy sibling core slows this one down."""
    began = time.thread_time()
    for _ in range(300_000):
        pass
    return max(1.0, (time.thread_time() - began) / _NOMINAL_SECONDS)


class _Watchdog:
    """Watches the event loop of the current thread, at next to no cost while the loop is idle."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._clock = time.pthread_getcpuclockid(self._thread_id)
        self._turned_at = self._since = time.clock_gettime(self._clock)
        self._is_turning = False
        self._seen = ""
        self._max_seconds = MAX_SECONDS * min(_slowness() for _ in range(3))
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        """Asks the loop to turn whenever it works, and remembers what it does when it should have turned."""
        while True:
            time.sleep(_TURN_SECONDS if self._is_turning else _IDLE_SECONDS)
            now = time.clock_gettime(self._clock)
            if self._is_turning:
                if not self._seen and now - self._since > self._max_seconds / 2:
                    self._seen = self._stack()
            elif now - self._turned_at > _WORK_SECONDS:
                self._since = max(self._turned_at, now - _BEGUN_SECONDS)
                self._is_turning = True
                try:
                    self._loop.call_soon_threadsafe(self._turn)
                except RuntimeError:
                    return  # the loop is closed

    def _turn(self) -> None:
        seconds = time.clock_gettime(self._clock) - self._since
        if seconds > self._max_seconds and not self._seen.startswith(_LOOP) and seconds > self._judged_limit():
            print(f"event loop held for {seconds:.3f} s in {self._seen or '?'}", file=sys.stderr, flush=True)
        self._seen = ""
        self._turned_at = time.clock_gettime(self._clock)
        self._is_turning = False

    def _judged_limit(self) -> float:
        return (_MAX_COPY_SECONDS if self._seen.startswith(_COPYING) else MAX_SECONDS) * _slowness()

    def _stack(self) -> str:
        frame = sys._current_frames()[self._thread_id]  # pyright: ignore[reportPrivateUsage]
        stack = [f"{each.name} ({each.filename}:{each.lineno})" for each in traceback.extract_stack(frame)]
        if stack[-1].startswith(_TURN):
            stack.pop()  # what the loop did is over
        return " < ".join(reversed(stack))


def watch_once_ready(server_module: Any) -> None:
    """Watches each server of `glimpse.server.lifecycle.server` from when it serves."""
    ready = server_module.Server.ready

    async def watched(server: Any) -> Any:
        result = await ready(server)
        _Watchdog()
        return result

    server_module.Server.ready = watched
