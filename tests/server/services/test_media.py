"""Tests for uploads that need no running server: disabled, stalled, cancelled and too large ones."""

import asyncio
from collections.abc import AsyncIterator
from hashlib import sha256

import pytest

from glimpse.media.cache.memory_budget import MemoryBudget
from glimpse.media.errors import MediaErrorCode
from glimpse.media.sources.uploads import Uploads
from glimpse.server.batches.handlers import BatchFiles
from glimpse.server.batches.store import SqliteStore
from glimpse.server.call.context import CallContext
from glimpse.server.errors import InvalidRequest
from glimpse.server.services.media import MediaHandlers
from glimpse.v1 import media_pb2

DATA = b"x" * 100


def handlers(memory_budget: MemoryBudget, *, max_bytes: int = 10_000) -> MediaHandlers:
    uploads, stored = (Uploads(max_bytes=max_bytes, ttl_seconds=60, memory_budget=memory_budget) for _ in range(2))
    return MediaHandlers(uploads, stored, BatchFiles(SqliteStore(None)))


async def parts(stuck: asyncio.Event | None = None) -> AsyncIterator[media_pb2.UploadMediaRequest]:
    """Messages of a whole upload; with `stuck` the stream does not end, and the event is set after the last message."""
    yield media_pb2.UploadMediaRequest(header={"sha256": sha256(DATA).digest()})
    yield media_pb2.UploadMediaRequest(chunk=DATA)
    if stuck is not None:
        stuck.set()
        await asyncio.Event().wait()


async def test_refuses_uploads_without_an_upload_cache() -> None:
    with pytest.raises(InvalidRequest, match="--upload-cache-bytes") as caught:
        await handlers(MemoryBudget(), max_bytes=0).upload(parts(), CallContext())
    assert caught.value.reason == "unsupported"


async def test_upload_times_out_if_the_client_stops_sending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glimpse.server.rpc.http_bodies.MAX_BEHIND_SECONDS", 0.01)
    memory_budget = MemoryBudget()
    with pytest.raises(InvalidRequest) as caught:
        await handlers(memory_budget).upload(parts(asyncio.Event()), CallContext())
    assert caught.value.reason == "request_timeout"
    assert memory_budget.num_bytes == 0


async def test_cancelled_upload_releases_its_memory() -> None:
    memory_budget, stuck = MemoryBudget(), asyncio.Event()
    upload = asyncio.create_task(handlers(memory_budget).upload(parts(stuck), CallContext()))
    await stuck.wait()
    assert memory_budget.num_bytes == len(DATA)
    upload.cancel()
    await asyncio.wait([upload])
    assert memory_budget.num_bytes == 0


async def test_refuses_uploads_beyond_the_memory_budget() -> None:
    memory_budget = MemoryBudget(max_bytes=2 * len(DATA))
    with memory_budget.reservation() as others:
        others.reserve(len(DATA) + 1)
        with pytest.raises(InvalidRequest) as caught:
            await handlers(memory_budget).upload(parts(), CallContext())
        assert caught.value.reason == MediaErrorCode.OVERLOADED
    assert (await handlers(memory_budget).upload(parts(), CallContext())).media.size_bytes == len(DATA)
