"""LoadService: streams load reports, for load balancers that do not read them from response trailers."""

import asyncio
from collections.abc import AsyncGenerator

from glimpse.server.call.context import CallContext
from glimpse.server.call.deadline import within
from glimpse.server.errors import InvalidRequest
from glimpse.server.rpc.load_meter import LoadMeter
from glimpse.v1 import load_pb2

ORCA_METHOD = "xds.service.orca.v3.OpenRcaService.StreamCoreMetrics"
"""Method name that load balancers use."""
DEFAULT_INTERVAL_SECONDS = 1.0
SHORTEST_INTERVAL_SECONDS = 0.1


class LoadHandlers:
    """Method of LoadService. `glimpse.server.rpc.errors` maps the exceptions it raises to statuses."""

    def __init__(self, meter: LoadMeter) -> None:
        self._meter = meter

    async def stream_load_reports(
        self, request: load_pb2.StreamLoadReportsRequest, call: CallContext
    ) -> AsyncGenerator[load_pb2.StreamLoadReportsResponse, None]:
        """StreamLoadReports. Yields a report immediately, then one per interval."""
        seconds, deadline = _interval_seconds(request), call.deadline
        while True:
            yield self._meter.report()
            await _sleep(seconds, deadline)


async def _sleep(seconds: float, deadline: float | None) -> None:
    """Raises DeadlineExceededError if the deadline passes before.

    At the client's deadline gRPC would reset the stream, which Envoy passes on as an error of its own (INTERNAL).
    """
    async with within(deadline):
        await asyncio.sleep(seconds)


def _interval_seconds(request: load_pb2.StreamLoadReportsRequest) -> float:
    interval = request.report_interval
    seconds = interval.seconds + interval.nanos / 1e9
    if seconds < 0:
        raise InvalidRequest("report_interval", f"expected 0 s or more, got {seconds:g} s")
    return max(seconds or DEFAULT_INTERVAL_SECONDS, SHORTEST_INTERVAL_SECONDS)
