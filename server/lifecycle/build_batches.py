"""Builds what answers batches."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from glimpse.identity.access import Access
from glimpse.media.cache.fair_share import FairCapacity
from glimpse.media.shared.address import parse_store_url
from glimpse.media.sources.uploads import Uploads
from glimpse.server.batches.handlers import BatchFiles, BatchHandlers
from glimpse.server.batches.lines import methods
from glimpse.server.batches.runner import BatchRunner
from glimpse.server.batches.store import BatchStore, SqliteStore
from glimpse.server.call.admission import Admission
from glimpse.server.call.body_budget import BodyReservation
from glimpse.server.call.context import CallContext
from glimpse.server.dialects.facade import Endpoint
from glimpse.server.lifecycle.build_media import state_folder_errors
from glimpse.server.rpc.failure import RpcFailure
from glimpse.server.settings import BatchSettings, MediaSettings
from glimpse.server.telemetry.metrics import Metrics


class BatchComponents:
    """Batches of one server."""

    def __init__(self, settings: BatchSettings, media: MediaSettings, uploads: Uploads) -> None:
        """Opens the store. Raises UsageError if its folder cannot be used."""
        self.store = _open_store(media)
        self.files = BatchFiles(self.store)
        self._settings = settings
        self._wake = asyncio.Event()
        self.handlers = BatchHandlers(
            self.store,
            uploads,
            methods().keys(),
            on_change=self._wake.set,
            max_store_bytes=settings.batch_store_bytes,
            ttl_seconds=settings.batch_ttl,
        )
        self._running: asyncio.Task[None] | None = None

    def start(
        self,
        endpoints: Mapping[str, Endpoint],
        access: Access,
        admission: Admission,
        bodies: FairCapacity,
        metrics: Metrics,
        *,
        max_line_bytes: int,
    ) -> None:
        """Begins to answer batches.

        Args:
            endpoints: What serves the methods of REST APIs, by their full names.
            admission: Lets their requests be prepared in turn.
        """
        if self._settings.batch_store_bytes == 0:
            return
        by_path = {path: endpoints[method.full_name] for path, method in methods().items()}

        async def answer(path: str, body: bytes, call: CallContext) -> tuple[RpcFailure | None, bytes]:
            return await by_path[path].answer(body, call)

        runner = BatchRunner(
            self.store,
            answer,
            partial(_new_call, access=access, admission=admission, bodies=bodies),
            metrics,
            max_store_bytes=self._settings.batch_store_bytes,
            max_requests=self._settings.batch_requests,
            max_line_bytes=max_line_bytes,
            at_once=self._settings.batch_at_once,
            wake=self._wake,
        )
        self._running = asyncio.create_task(runner.run())

    async def stop(self) -> None:
        """Stops to answer batches: others may go on, or this server after its restart. Idempotent."""
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    async def close(self) -> None:
        await self.stop()
        await self.store.close()


def _new_call(tenant_name: str, *, access: Access, admission: Admission, bodies: FairCapacity) -> CallContext:
    tenant = access.tenant(tenant_name)
    client = f"batches {tenant.namespace_prefix}"
    return CallContext(
        client=client,
        tenant=tenant,
        is_admin=False,
        ticket=admission.background_ticket(client),
        body=BodyReservation(bodies, client),
        is_background=True,
    )


def _open_store(media: MediaSettings) -> BatchStore:
    if media.media_store is not None:
        from glimpse.server.batches.redis_store import RedisStore  # noqa: PLC0415 - the Redis client takes 60 ms

        return RedisStore(parse_store_url(media.media_store, media.media_store_ca), prefix=media.media_store_prefix)
    with state_folder_errors(media.state_folder):
        return SqliteStore(media.state_folder)
