"""The metrics of a server that has several front ends, as those of one process."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from threading import Lock

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from glimpse.server.telemetry.snapshots import MetricsSnapshot, cumulative_sum, merge, take_snapshot


class MergedMetrics(Collector):
    """Adds the metrics of front ends to those of the supervisor.

    What front ends counted stays when their processes end, so counters never fall. A front end that does not answer
    in time counts as it last answered.

    What the supervisor records itself, such as the engine's metrics (`Metrics.engine_families`), must be missing in
    the front ends' snapshots. A gauge that says whether something is available must be missing in the supervisor's
    own metrics, unless the supervisor sets it.
    """

    def __init__(self, own: Collector, snapshots: Callable[[], Mapping[int, MetricsSnapshot]]) -> None:
        """Reads nothing yet.

        Args:
            snapshots: Returns the snapshots of the front ends that answer, by number; raises nothing. Called for each
                scrape, in a thread of the metrics server, by one thread at a time. It may wait for the event loop.
        """
        self._own = own
        self._snapshots = snapshots
        self._scrape = Lock()
        """Held during a scrape. Of two at once, the later could store what the earlier one was answered."""
        self._state = Lock()
        """Guards what follows. Never held while a front end is waited for."""
        self._last: dict[int, MetricsSnapshot] = {}
        self._retired: MetricsSnapshot = ()
        """Exact sums of the counters and histograms of processes that ended."""
        self._num_retired: defaultdict[int, int] = defaultdict(int)

    def collect(self) -> Iterator[Metric]:
        """Yields the families of this moment."""
        with self._scrape:
            merged = merge([take_snapshot(self._own), *self._read()])
        yield from merged

    def retire(self, number: int) -> None:
        """Keeps what a front end counted, whose process ended, and drops its gauges.

        Call it once for each process that ended, before another starts with this number, which counts from 0. It does
        not wait for scrapes, and any thread may call it.
        """
        with self._state:
            self._num_retired[number] += 1
            self._retired = cumulative_sum([self._retired, self._last.pop(number, ())])

    def _read(self) -> list[MetricsSnapshot]:
        """Asks the front ends and returns the last snapshot of each, and the sums of those that ended."""
        with self._state:
            before = self._num_retired.copy()
        answers = self._snapshots()
        with self._state:
            for number, snapshot in answers.items():
                # An answer of a process that ended since would count twice: in the sums, and as its successor's.
                if self._num_retired[number] == before[number]:
                    self._last[number] = snapshot
            return [*self._last.values(), self._retired]
