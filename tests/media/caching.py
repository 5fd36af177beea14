"""Loaders that keep media, and what their decoders and fetches did."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from glimpse.media.cache.memory_budget import InFlight
from glimpse.media.cache.request_media import MediaUsage
from glimpse.media.cache.store import MediaStore
from glimpse.media.decoding.decoders import Decoders
from glimpse.media.loader import MediaLoader
from glimpse.media.processing.image import Image, ImageProcessing
from glimpse.media.processing.video import Video, VideoProcessing
from glimpse.media.processing.video_options import VideoOptions
from glimpse.media.sources.source import ImageOrNamed, VideoOrNamed
from glimpse.media.sources.uploads import Uploads
from tests.media.test_loader import POLICY, PROCESSING, VIDEO_PROCESSING


class Clock:
    """A time that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class CountingDecoders(Decoders):
    """Decodes as ever, and counts."""

    def __init__(self) -> None:
        super().__init__(isolated=False)
        self.num_decoded = 0

    async def image(self, data: bytes, processing: ImageProcessing) -> Image:
        self.num_decoded += 1
        return await super().image(data, processing)

    async def video_of_file(self, data: bytes, processing: VideoProcessing, options: VideoOptions) -> Video:
        self.num_decoded += 1
        return await super().video_of_file(data, processing, options)

    async def video_of_images(
        self, files: Sequence[bytes], taken: Sequence[int], processing: VideoProcessing, options: VideoOptions
    ) -> Video:
        self.num_decoded += 1
        return await super().video_of_images(files, taken, processing, options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeper:
    """A loader that keeps media, and all that is around it."""

    loader: MediaLoader
    store: MediaStore
    uploads: Uploads
    in_flight: InFlight
    decoders: CountingDecoders
    clock: Clock

    async def image(self, source: ImageOrNamed, tenant: str = "", **options: Any) -> tuple[Image, MediaUsage]:
        """A picture as one request loads it, and what that took."""
        with self.loader.batch(tenant) as batch:
            return await self.loader.load_image(source, batch=batch, **options), batch.usage

    async def clip(
        self, source: VideoOrNamed, options: VideoOptions, tenant: str = "", uuid: str | None = None
    ) -> tuple[Video, MediaUsage]:
        """A clip as one request loads it, and what that took."""
        with self.loader.batch(tenant) as batch:
            return await self.loader.load_video(source, options, batch=batch, uuid=uuid), batch.usage


@asynccontextmanager
async def keeping(
    *, max_bytes: int = 64 << 20, upload_bytes: int = 1 << 20, in_flight: InFlight | None = None
) -> AsyncGenerator[Keeper]:
    clock, decoders, in_flight = Clock(), CountingDecoders(), in_flight or InFlight()
    store = MediaStore(max_bytes=max_bytes, clock=clock)
    uploads = Uploads(max_bytes=upload_bytes, ttl_seconds=60, in_flight=in_flight, clock=clock)
    loader = MediaLoader(
        processing=PROCESSING,
        video_processing=VIDEO_PROCESSING,
        policy=POLICY,
        decoders=decoders,
        store=store,
        uploads=uploads,
        in_flight=in_flight,
    )
    keeper = Keeper(loader=loader, store=store, uploads=uploads, in_flight=in_flight, decoders=decoders, clock=clock)
    try:
        yield keeper
    finally:
        await loader.close()
        assert in_flight.num_bytes == 0
