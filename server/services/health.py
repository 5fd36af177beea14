"""Health service (grpc.health.v1): SERVING while the engine accepts requests and the server is not draining."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

# The module defines it conditionally, which pyright does not follow.
from grpc_health.v1.health import aio as health_aio  # pyright: ignore[reportAttributeAccessIssue]

_list_response: Any = health_pb2.HealthListResponse  # pyright: ignore[reportAttributeAccessIssue] - the stubs lack it
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

MEDIA_STORE = "glimpse.media_store"
"""Name under which the health of the media store is reported, by servers that have one."""
QUOTA_STORE = "glimpse.quota_store"
"""Name under which the health of the shared quotas is reported, by servers that count together with others."""
HEALTH_SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name


class _Servicer(health_aio.HealthServicer):  # pyright: ignore[reportUntypedBaseClass] - as above
    """The library's service, and the method that it lacks."""

    def __init__(self) -> None:
        super().__init__()
        self._names = set[str]()

    async def set(self, service: str, status: "health_pb2.HealthCheckResponse.ServingStatus") -> None:
        self._names.add(service)
        await super().set(service, status)

    async def List(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        del request
        checks = {name: await self.Check(health_pb2.HealthCheckRequest(service=name), context) for name in self._names}
        return _list_response(statuses=checks)


class Health:
    """Health of the server and of each service; all share the engine's."""

    def __init__(self, service_names: Sequence[str]) -> None:
        self._servicer = _Servicer()
        # The empty name stands for the whole server.
        self._service_names = ("", *service_names)
        self._lock = asyncio.Lock()
        self._tasks = set[asyncio.Task[None]]()

    async def add_to(self, server: grpc.aio.Server) -> None:
        """Registers the service. Reports NOT_SERVING until `set` is called."""
        await self._apply(_NOT_SERVING, self._service_names)
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    def set(self, serving: bool) -> None:
        """Schedules a status change on the event loop; changes apply in call order."""
        self._schedule(self._apply(_SERVING if serving else _NOT_SERVING, self._service_names))

    def set_store(self, name: str, available: bool) -> None:
        """Schedules a change of a store's status. Without the store the server still serves."""
        self._schedule(self._apply(_SERVING if available else _NOT_SERVING, (name,)))

    async def drain(self) -> None:
        """Reports NOT_SERVING from now on; later changes are ignored."""
        await self._servicer.enter_graceful_shutdown()

    def _schedule(self, change: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(change)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _apply(
        self, status: "health_pb2.HealthCheckResponse.ServingStatus", service_names: Sequence[str]
    ) -> None:
        async with self._lock:
            for name in service_names:
                await self._servicer.set(name, status)
