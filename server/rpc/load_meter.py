"""Measures the server's load for load balancers.

The report format is ORCA (Open Request Cost Aggregation, `xds.data.orca.v3`), see `glimpse/v1/load.proto`.
"""

import time
from collections import deque
from collections.abc import Callable

from glimpse.engine.protocol.messages import StepStats
from glimpse.v1 import load_pb2

REPORT_TRAILER = "endpoint-load-metrics-bin"
WINDOW_SECONDS = 10.0
"""Period over which rates are averaged."""
_SHORTEST_WINDOW_SECONDS = 0.1
"""Lower bound of the divisor, so that the first requests do not yield extreme rates."""
_LEAST_UTILIZATION = 0.1
"""Reported by a server that has less to do. Balancers divide by the utilization and ignore reports of 0: an idle
server would get no more requests than a busy one."""
_FAILURES = ("UNKNOWN", "INTERNAL", "UNAVAILABLE", "ABORTED", "RESOURCE_EXHAUSTED")


class RateMeter:
    """Rate of recent events."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = clock()
        self._times: deque[float] = deque()

    def count(self) -> None:
        """Records an event."""
        self._times.append(self._clock())
        self._drop_old()

    def per_second(self) -> float:
        """Mean rate over the window, or since the start if that is shorter."""
        self._drop_old()
        return len(self._times) / max(min(WINDOW_SECONDS, self._clock() - self._began), _SHORTEST_WINDOW_SECONDS)

    def _drop_old(self) -> None:
        first = self._clock() - WINDOW_SECONDS
        while self._times and self._times[0] < first:
            self._times.popleft()


class LoadMeter:
    """Tracks RPCs and engine steps."""

    def __init__(self, *, max_sequences: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`max_sequences`: the most sequences that the engine computes at the same time."""
        self._max_sequences = max_sequences
        self._rpcs = RateMeter(clock)
        self._failures = RateMeter(clock)
        self._num_running = self._num_waiting = self._num_used_blocks = self._num_blocks = 0
        self._others = (0.0, 0.0)

    @property
    def rates(self) -> tuple[float, float]:
        """RPCs and failures a second in this process."""
        return self._rpcs.per_second(), self._failures.per_second()

    def set_others(self, rpcs_per_second: float, failures_per_second: float) -> None:
        """Says what other processes of the same server do."""
        self._others = (rpcs_per_second, failures_per_second)

    def rpc_began(self) -> None:
        """Counts an RPC. Counted at its begin: balancers ignore reports with a rate of 0."""
        self._rpcs.count()

    def rpc_ended(self, code: str) -> None:
        """Counts a failure if `code`, the name of the RPC's status, is a server error."""
        if code in _FAILURES:
            self._failures.count()

    def engine_changed(self, *, num_blocks: int) -> None:
        """Resets the engine's figures: it became ready or unavailable. `num_blocks` is the size of its KV cache."""
        self._num_running = self._num_waiting = self._num_used_blocks = 0
        self._num_blocks = num_blocks

    def engine_stepped(self, stats: StepStats) -> None:
        """Updates the engine's figures after a step."""
        self._num_running, self._num_waiting = stats.num_running, stats.num_waiting
        self._num_used_blocks = stats.num_used_blocks

    def report(self) -> load_pb2.StreamLoadReportsResponse:
        """Returns the current load."""
        used = self._num_used_blocks / self._num_blocks if self._num_blocks else 0.0
        rpcs, failures = self.rates
        return load_pb2.StreamLoadReportsResponse(
            rps_fractional=rpcs + self._others[0],
            eps=failures + self._others[1],
            named_metrics={
                "kv_cache_usage_perc": used,
                "num_requests_running": self._num_running,
                "num_requests_waiting": self._num_waiting,
            },
            application_utilization=max(
                _LEAST_UTILIZATION, used, (self._num_running + self._num_waiting) / self._max_sequences
            ),
        )
