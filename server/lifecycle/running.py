"""A running server and its end: announced, drained, stopped. `server.lifecycle.assemble` builds it."""

import asyncio
from contextlib import suppress

import grpc.aio

from glimpse.engine.ipc.client import EngineClient
from glimpse.engine.protocol import Ready
from glimpse.server.lifecycle.assemble_media import MediaParts
from glimpse.server.rpc.interceptors import RpcInterceptor
from glimpse.server.rpc.metrics import MetricsServer
from glimpse.server.services.health import Health

_FLUSH_SECONDS = 0.2
"""Between the last answer's end and the end of its connection."""


class Server:
    """A running server: listening, its model loading or loaded."""

    def __init__(
        self,
        *,
        port: int,
        grpc_server: grpc.aio.Server,
        metrics_server: MetricsServer,
        engine: EngineClient,
        media: MediaParts,
        health: Health,
        calls: RpcInterceptor,
    ) -> None:
        self.port = port
        """Of gRPC, as bound."""
        self.metrics_port = metrics_server.port
        self._grpc_server = grpc_server
        self._metrics_server = metrics_server
        self._engine = engine
        self._media = media
        self._health = health
        self._calls = calls
        self._loading = asyncio.create_task(engine.start())

    async def ready(self) -> Ready:
        """Waits until the model is loaded, and readies what decodes. Raises CheckpointError, EngineError."""
        ready = await asyncio.shield(self._loading)
        await self._media.warm()
        return ready

    async def announce_stop(self, delay_seconds: float) -> None:
        """Turns health to NOT_SERVING and gives proxies time to notice; requests are still served."""
        await self._health.drain()
        await asyncio.sleep(delay_seconds)

    async def stop(self, *, grace_seconds: float) -> None:
        """Takes no new calls, lets the running ones end for so long, then ends everything. May be called again."""
        await self._health.drain()
        closing = asyncio.create_task(self._grpc_server.stop(grace_seconds))
        with suppress(TimeoutError):
            await asyncio.wait_for(self._calls.wait_until_idle(), grace_seconds)
        # Those who watch health never leave by themselves. Of two graces the shorter one holds.
        await self._grpc_server.stop(_FLUSH_SECONDS)
        await closing
        await self._engine.stop()
        await asyncio.wait([self._loading])
        await self._media.close()
        await asyncio.to_thread(self._metrics_server.close)
