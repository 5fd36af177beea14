"""A running server, and how it drains and stops. `server.lifecycle.build_server` builds it."""

import asyncio
from contextlib import suppress

import grpc.aio

from glimpse.engine.ipc.client import EngineClient
from glimpse.engine.protocol import Ready
from glimpse.server.lifecycle.build_media import MediaComponents
from glimpse.server.rpc.interceptors import RpcInterceptor
from glimpse.server.rpc.metrics import MetricsServer
from glimpse.server.services.health import Health

_FLUSH_SECONDS = 0.2
"""Time for the last response to leave before its connection closes."""


class Server:
    """A server that listens while its model loads, and after."""

    def __init__(
        self,
        *,
        port: int,
        grpc_server: grpc.aio.Server,
        metrics_server: MetricsServer,
        engine: EngineClient,
        media: MediaComponents,
        health: Health,
        interceptor: RpcInterceptor,
    ) -> None:
        self.port = port
        """gRPC port, as bound."""
        self.metrics_port = metrics_server.port
        self._grpc_server = grpc_server
        self._metrics_server = metrics_server
        self._engine = engine
        self._media = media
        self._health = health
        self._interceptor = interceptor
        self._loading = asyncio.create_task(engine.start())

    async def ready(self) -> Ready:
        """Waits until the model is loaded and the decoders run. Raises CheckpointError, EngineError."""
        ready = await asyncio.shield(self._loading)
        await self._media.warm()
        return ready

    async def announce_stop(self, delay_seconds: float) -> None:
        """Turns health to NOT_SERVING and gives proxies time to notice. Requests are still served."""
        await self._health.drain()
        await asyncio.sleep(delay_seconds)

    async def stop(self, *, grace_seconds: float) -> None:
        """Refuses new requests, gives running ones `grace_seconds` to end, then stops everything. Idempotent."""
        await self._health.drain()
        closing = asyncio.create_task(self._grpc_server.stop(grace_seconds))
        with suppress(TimeoutError):
            await asyncio.wait_for(self._interceptor.wait_until_idle(), grace_seconds)
        # Streams that watch health never end by themselves. The shorter of two graces applies.
        await self._grpc_server.stop(_FLUSH_SECONDS)
        await closing
        await self._engine.stop()
        await asyncio.gather(self._loading, return_exceptions=True)
        await self._media.close()
        await asyncio.to_thread(self._metrics_server.close)
