"""A running server, and how it drains and stops. `server.lifecycle.build_server` builds it."""

import asyncio
import gc
import logging
from collections.abc import Sequence
from contextlib import suppress

import grpc.aio

from glimpse.engine.client.engine import Engine
from glimpse.engine.protocol.messages import Ready
from glimpse.identity.access import Access
from glimpse.native.memory import freeze_garbage
from glimpse.server.lifecycle.build_batches import BatchComponents
from glimpse.server.lifecycle.build_media import MediaComponents
from glimpse.server.rpc.stopping import OpenRpcs
from glimpse.server.services.health import Health
from glimpse.server.telemetry.metrics_server import MetricsServer

_logger = logging.getLogger(__name__)

_BEGIN_SECONDS = 0.2
"""Time for calls that gRPC has received to begin: it would cancel them without a status when it closes its port."""
END_SECONDS = 3.0
"""Time for requests that are ended to send their last words; more than a client that reads needs."""
_FLUSH_SECONDS = 0.5
"""Time for connections to close by themselves, after the responses are written."""
_OBJECTS_UNTIL_COLLECTION = 20_000
"""With Python's 700, each step of 128 streams brings a collection of a third of a millisecond, and none finds much."""


class Server:
    """A server that listens while its model loads, and after."""

    def __init__(
        self,
        *,
        port: int,
        grpc_server: grpc.aio.Server,
        metrics_server: MetricsServer | None,
        engine: Engine,
        media: MediaComponents,
        batches: BatchComponents,
        access: Access,
        health: Health,
        open_rpcs: OpenRpcs,
        watches: Sequence[asyncio.Task[None]],
    ) -> None:
        self.port = port
        """gRPC port, as bound."""
        self._grpc_server = grpc_server
        self._metrics_server = metrics_server
        self._engine = engine
        self._media = media
        self._batches = batches
        self.access = access
        self._health = health
        self._open_rpcs = open_rpcs
        self._watches = watches
        for watch in watches:
            watch.add_done_callback(_report_failure)
        self._loading = asyncio.create_task(engine.start())

    @property
    def metrics_port(self) -> int:
        """Port of the Prometheus endpoint. Raises ValueError if another process has it."""
        if self._metrics_server is None:
            raise ValueError("this front end serves no metrics")
        return self._metrics_server.port

    async def ready(self) -> Ready:
        """Waits until the model is loaded and the decoders run. Raises CheckpointError, EngineError."""
        ready = await asyncio.shield(self._loading)
        await self._media.warm()
        freeze_garbage()
        gc.set_threshold(_OBJECTS_UNTIL_COLLECTION)
        return ready

    async def announce_stop(self, delay_seconds: float) -> None:
        """Turns health to NOT_SERVING and gives proxies time to notice. Requests are still served."""
        await self._health.drain()
        await asyncio.sleep(delay_seconds)

    async def end_requests(self, *, grace_seconds: float) -> None:
        """Refuses new requests, gives running ones `grace_seconds` and ends the others with UNAVAILABLE. Idempotent."""
        await self._health.drain()
        await self._batches.stop()
        self._open_rpcs.refuse_requests()
        await asyncio.sleep(_BEGIN_SECONDS)
        # Closes the port. Its grace is longer than what follows: gRPC cuts calls without a word.
        closing = asyncio.create_task(self._grpc_server.stop(grace_seconds + 2 * END_SECONDS))
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                await self._open_rpcs.wait_until_idle()
        with suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await self._open_rpcs.end_all()
        await self._grpc_server.stop(_FLUSH_SECONDS)  # the shorter of two graces applies
        await closing

    async def stop(self, *, grace_seconds: float) -> None:
        """Ends the requests, then stops everything. Idempotent."""
        await self.end_requests(grace_seconds=grace_seconds)
        await self._engine.stop()
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(self._loading, *self._watches, return_exceptions=True)
        await self._media.close()
        await self._batches.close()
        if self._metrics_server is not None:
            await asyncio.to_thread(self._metrics_server.close)


def _report_failure(watch: asyncio.Task[None]) -> None:
    """Logs why a watch ended, which goes on until it is cancelled. The server serves without it."""
    if not watch.cancelled() and (error := watch.exception()) is not None:
        _logger.error("a watch of the server failed; what it watched stays as it is", exc_info=error)
