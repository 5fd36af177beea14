"""Health service (grpc.health.v1): SERVING while the engine accepts requests and the server is not draining."""

import asyncio
from collections.abc import Sequence

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

# The module defines it conditionally, which pyright does not follow.
from grpc_health.v1.health import aio as health_aio  # pyright: ignore[reportAttributeAccessIssue]

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

HEALTH_SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name


class Health:
    """Health of the server and of each service; all share the engine's."""

    def __init__(self, service_names: Sequence[str]) -> None:
        self._servicer = health_aio.HealthServicer()
        # The empty name stands for the whole server.
        self._service_names = ("", *service_names)
        self._lock = asyncio.Lock()
        self._tasks = set[asyncio.Task[None]]()

    async def add_to(self, server: grpc.aio.Server) -> None:
        """Registers the service. Reports NOT_SERVING until `set` is called."""
        await self._apply(_NOT_SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    def set(self, serving: bool) -> None:
        """Schedules a status change on the event loop; changes apply in call order."""
        task = asyncio.get_running_loop().create_task(self._apply(_SERVING if serving else _NOT_SERVING))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def drain(self) -> None:
        """Reports NOT_SERVING from now on; later changes are ignored."""
        await self._servicer.enter_graceful_shutdown()

    async def _apply(self, status: "health_pb2.HealthCheckResponse.ServingStatus") -> None:
        async with self._lock:
            for name in self._service_names:
                await self._servicer.set(name, status)
