"""Probes: /health, /v1/models and gRPC health, ten times a second, each as it would come from a monitor."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.chaos.calls import http_session
from tests.chaos.ledger import Ending, Ledger
from tests.chaos.target import Target
from tests.chaos.transcript import Outcome

NOT_SERVING = "not serving"
INTERVAL_SECONDS = 0.1
TIMEOUT_SECONDS = 20.0

Probe = Callable[[], Awaitable[bool]]
"""Whether the server says that it serves. Raises for no answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """The time of a probe, or of a stream to its first text."""

    at: float
    """When it began."""
    seconds: float


@dataclass(slots=True, kw_only=True)
class Probes:
    """The monitor, and what it measured."""

    target: Target
    ledger: Ledger
    latencies: dict[str, list[Latency]] = field(default_factory=dict[str, list[Latency]])
    own_delay_seconds: float = 0.0
    """The longest that this program's event loop was late: what is measured is not better than this."""
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Probes until `stop`. A slow answer does not delay the next probe."""
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
            probes = await self._probes(stack)
            due = time.monotonic()
            while not self._stopping.is_set():
                for name, probe in probes.items():
                    tasks.create_task(self._probe(name, probe))
                due += INTERVAL_SECONDS
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                self._note_own_delay(due)
                due = max(due, time.monotonic() - INTERVAL_SECONDS)

    def stop(self) -> None:
        self._stopping.set()

    def _note_own_delay(self, due: float) -> None:
        self.own_delay_seconds = max(self.own_delay_seconds, time.monotonic() - due)

    async def _probes(self, stack: AsyncExitStack) -> Mapping[str, Probe]:
        session = await stack.enter_async_context(http_session(self.target.url))
        options = [("grpc.max_reconnect_backoff_ms", 200), ("grpc.use_local_subchannel_pool", 1)]
        channel = grpc.aio.insecure_channel(self.target.grpc_target, options=options)
        health: Any = health_pb2_grpc.HealthStub(await stack.enter_async_context(channel))

        def get(path: str) -> Probe:
            async def probe() -> bool:
                async with session.get(path) as response:
                    await response.read()
                    return response.status == 200

            return probe

        async def grpc_health() -> bool:
            answer = await health.Check(health_pb2.HealthCheckRequest())
            return answer.status == health_pb2.HealthCheckResponse.SERVING

        return {"/health": get("/health"), "/v1/models": get("/v1/models"), "gRPC health": grpc_health}

    async def _probe(self, name: str, probe: Probe) -> None:
        start = time.monotonic()
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                outcome, code = (Outcome.OK, "") if await probe() else (Outcome.REFUSED, NOT_SERVING)
        except TimeoutError:
            outcome, code = Outcome.HUNG, ""
        except (aiohttp.ClientError, ConnectionError, grpc.aio.AioRpcError) as error:
            outcome, code = Outcome.BROKEN, type(error).__name__
        end = time.monotonic()
        if outcome is not Outcome.BROKEN:
            self.latencies.setdefault(name, []).append(Latency(at=start, seconds=end - start))
        if outcome is not Outcome.OK:
            ending = Ending(who=f"probe {name}", start=start, end=end, outcome=outcome, code=code, detail=code)
            self.ledger.add(ending)
