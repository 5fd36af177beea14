"""How busy the server is, as load balancers read it.

The form is ORCA's (Open Request Cost Aggregation, `xds.data.orca.v3`), see `glimpse/v1/load.proto`.
"""

import time
from collections import deque
from collections.abc import Callable

from glimpse.engine.protocol import StepStats
from glimpse.v1 import load_pb2

REPORT_TRAILER = "endpoint-load-metrics-bin"
WINDOW_SECONDS = 10.0
"""Of rates."""
_SHORTEST_WINDOW_SECONDS = 0.1
"""A rate of less would be chance."""
_FAILURES = ("UNKNOWN", "INTERNAL", "UNAVAILABLE", "RESOURCE_EXHAUSTED")


class Rate:
    """How often something happens, of late."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = clock()
        self._times: deque[float] = deque()

    def count(self) -> None:
        """It happens."""
        self._times.append(self._clock())
        self._forget()

    def per_second(self) -> float:
        """The mean of the window, or of the time that there was."""
        self._forget()
        return len(self._times) / max(min(WINDOW_SECONDS, self._clock() - self._began), _SHORTEST_WINDOW_SECONDS)

    def _forget(self) -> None:
        first = self._clock() - WINDOW_SECONDS
        while self._times and self._times[0] < first:
            self._times.popleft()


class LoadMeter:
    """What the server is busy with."""

    def __init__(self, *, max_sequences: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`max_sequences` are computed at the same time at most."""
        self._max_sequences = max_sequences
        self._calls = Rate(clock)
        self._failures = Rate(clock)
        self._num_running = self._num_waiting = self._num_used_blocks = self._num_blocks = 0

    def call_began(self) -> None:
        """Counts a call: when it begins, as balancers take no report of a server that nobody calls."""
        self._calls.count()

    def call_ended(self, code: str) -> None:
        """Counts it once more if the server failed; `code` is the name of its status."""
        if code in _FAILURES:
            self._failures.count()

    def engine_changed(self, *, num_blocks: int) -> None:
        """The engine began to serve, or no longer does, and computes nothing now; it has so many blocks."""
        self._num_running = self._num_waiting = self._num_used_blocks = 0
        self._num_blocks = num_blocks

    def engine_stepped(self, stats: StepStats) -> None:
        """The engine has finished a step."""
        self._num_running, self._num_waiting = stats.num_running, stats.num_waiting
        self._num_used_blocks = stats.num_used_blocks

    def report(self) -> load_pb2.StreamLoadReportsResponse:
        """How it is now."""
        used = self._num_used_blocks / self._num_blocks if self._num_blocks else 0.0
        return load_pb2.StreamLoadReportsResponse(
            rps_fractional=self._calls.per_second(),
            eps=self._failures.per_second(),
            named_metrics={
                "kv_cache_usage_perc": used,
                "num_requests_running": self._num_running,
                "num_requests_waiting": self._num_waiting,
            },
            application_utilization=max(used, (self._num_running + self._num_waiting) / self._max_sequences),
        )
