"""Loaders with caches whose decodings and fetches are counted."""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from glimpse.media.cache.memory_budget import MemoryBudget
from glimpse.media.cache.request_media import MediaUsage
from glimpse.media.cache.shared_media import SharedMedia
from glimpse.media.cache.store import MediaStore
from glimpse.media.decoding.decoders import Decoders
from glimpse.media.decoding.jobs import DecodedMedia, Job
from glimpse.media.loader import MediaLoader
from glimpse.media.processing.image import Image
from glimpse.media.processing.video import Video
from glimpse.media.processing.video_options import VideoOptions
from glimpse.media.sources.source import ImageOrCached, VideoOrCached
from glimpse.media.sources.uploads import Uploads
from tests.clock import Clock
from tests.media.loaders import FETCHER, MEDIA_PROCESSING


class CountingDecoders(Decoders):
    def __init__(self) -> None:
        super().__init__(isolated=False)
        self.num_decoded = 0

    async def decode(self, job: Job, files: Sequence[bytes], *, client: str = "") -> DecodedMedia:
        self.num_decoded += 1
        return await super().decode(job, files, client=client)


@dataclass(frozen=True, slots=True, kw_only=True)
class CachingLoader:
    """A loader with caches, and its parts."""

    loader: MediaLoader
    store: MediaStore
    uploads: Uploads
    memory_budget: MemoryBudget
    decoders: CountingDecoders
    clock: Clock

    async def image(self, source: ImageOrCached, namespace: str = "", **options: Any) -> tuple[Image, MediaUsage]:
        """Loads an image as one request, and returns it with the request's usage."""
        with self.loader.batch(namespace) as batch:
            return await self.loader.load_image(source, batch=batch, **options), batch.usage

    async def loaded_video(
        self, source: VideoOrCached, options: VideoOptions, namespace: str = "", uuid: str | None = None
    ) -> tuple[Video, MediaUsage]:
        """Loads a video as one request, and returns it with the request's usage."""
        with self.loader.batch(namespace) as batch:
            return await self.loader.load_video(source, options, batch=batch, uuid=uuid), batch.usage


@asynccontextmanager
async def caching_loader(
    *,
    max_bytes: int = 64 << 20,
    upload_bytes: int = 1 << 20,
    memory_budget: MemoryBudget | None = None,
    shared: SharedMedia | None = None,
) -> AsyncGenerator[CachingLoader]:
    clock, decoders, memory_budget = Clock(1000.0), CountingDecoders(), memory_budget or MemoryBudget()
    if shared is not None:
        clock.now = time.time()  # replicas compare times
    store = MediaStore(max_bytes=max_bytes, shared=shared, clock=clock)
    uploads = Uploads(
        max_bytes=upload_bytes,
        ttl_seconds=60,
        memory_budget=memory_budget,
        shared=None if shared is None else shared.store,
        clock=clock,
    )
    if shared is not None:
        shared.store.on_purge(lambda prefix, _: uploads.purge(prefix))
        shared.store.on_reconnect(uploads.restore)
    loader = MediaLoader(
        processing=MEDIA_PROCESSING,
        fetcher=FETCHER,
        decoders=decoders,
        store=store,
        uploads=uploads,
        memory_budget=memory_budget,
    )
    caching = CachingLoader(
        loader=loader, store=store, uploads=uploads, memory_budget=memory_budget, decoders=decoders, clock=clock
    )
    try:
        yield caching
    finally:
        await loader.close()
        assert memory_budget.num_bytes == 0
