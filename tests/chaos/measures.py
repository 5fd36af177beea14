"""Measures the server from outside while it runs: memory, descriptors, threads, and the delay of its event loop."""

import asyncio
import contextlib
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp

from glimpse.native.process_table import resident_bytes
from tests.chaos import processes
from tests.chaos.processes import Holding
from tests.chaos.stack import Stack
from tests.chaos.statistics import HistogramTotal

_INTERVAL_SECONDS = 0.5
_LOOP_DELAY = "glimpse_event_loop_delay_seconds"
_BUCKET = re.compile(rf'^{_LOOP_DELAY}_bucket{{.*?le="([^"]+)".*?}} (\S+)$', re.MULTILINE)


@dataclass(slots=True, kw_only=True)
class Measures:
    """What the server's processes held, and when."""

    stack: Stack
    before: Mapping[str, Holding] = field(default_factory=dict[str, Holding])
    after: Mapping[str, Holding] = field(default_factory=dict[str, Holding])
    peak_bytes: dict[str, int] = field(default_factory=dict[str, int])
    """The largest resident set of each role's processes together."""
    loop_delay: HistogramTotal = field(default_factory=HistogramTotal)
    loop_delays: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """The time of each scrape, and the bound in seconds of the longest delay since the one before."""

    async def run(self) -> None:
        """Samples until it is cancelled."""
        timeout = aiohttp.ClientTimeout(total=10)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                self._sample_memory()
                with contextlib.suppress(aiohttp.ClientError, TimeoutError, ConnectionError):
                    await self._scrape(session)
                await asyncio.sleep(_INTERVAL_SECONDS)

    async def hold(self) -> Mapping[str, Holding]:
        """What the processes hold now."""
        return await asyncio.to_thread(processes.holdings, self.stack.pid)

    def _sample_memory(self) -> None:
        totals: dict[str, int] = {}
        for process in processes.tree(self.stack.pid):
            totals[process.role] = totals.get(process.role, 0) + resident_bytes(process.pid)
        totals["together"] = sum(totals.values())
        for role, total in totals.items():
            self.peak_bytes[role] = max(total, self.peak_bytes.get(role, 0))

    async def _scrape(self, session: aiohttp.ClientSession) -> None:
        async with session.get(self.stack.target.metrics_url) as response:
            text = await response.text()
        if buckets := {float(bound): float(count) for bound, count in _BUCKET.findall(text)}:
            largest = self.loop_delay.update(buckets)
            if largest is not None:
                self.loop_delays.append((time.monotonic(), largest))
