"""LoadService: a stream of load reports, for load balancers that do not read them at the end of each call."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from glimpse.server.rpc.errors import InvalidRequest
from glimpse.server.rpc.load_meter import LoadMeter
from glimpse.v1 import load_pb2

ORCA_METHOD = "xds.service.orca.v3.OpenRcaService.StreamCoreMetrics"
"""The name by which balancers ask for reports."""
DEFAULT_INTERVAL_SECONDS = 1.0
SHORTEST_INTERVAL_SECONDS = 0.1


class LoadHandlers:
    """LoadService's method; it raises what glimpse.server.rpc.errors knows."""

    def __init__(self, meter: LoadMeter) -> None:
        self._meter = meter

    async def stream_load_reports(
        self, request: load_pb2.StreamLoadReportsRequest, _context: Any
    ) -> AsyncGenerator[load_pb2.StreamLoadReportsResponse, None]:
        """A report at once, and one after each interval."""
        seconds = _interval_seconds(request)
        while True:
            yield self._meter.report()
            await asyncio.sleep(seconds)


def _interval_seconds(request: load_pb2.StreamLoadReportsRequest) -> float:
    interval = request.report_interval
    seconds = interval.seconds + interval.nanos / 1e9
    if seconds < 0:
        raise InvalidRequest("report_interval", "it must not be negative")
    return max(seconds or DEFAULT_INTERVAL_SECONDS, SHORTEST_INTERVAL_SECONDS)
