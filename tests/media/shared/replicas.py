"""Replicas for tests: caches and loaders as servers have them, with one Redis."""

from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256

import pytest

from glimpse.media.cache.media_file import MediaFile
from glimpse.media.cache.memory_budget import MemoryBudget
from glimpse.media.cache.shared_media import SharedMedia
from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.shared.address import parse_store_url
from glimpse.media.shared.keys import Area
from glimpse.media.shared.store import SharedStore
from glimpse.media.sources.source import CachedSource, DataSource, UploadSource
from tests.media.caching import CachingLoader, caching_loader
from tests.media.shared.redis_server import RedisServer

BY_UUID = CachedSource(uuid="cat")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A server's caches and its connection to Redis."""

    caching: CachingLoader
    shared: SharedMedia

    async def send(self, data: bytes, namespace: str = "", uuid: str = "cat") -> bytes:
        """Loads an image with a uuid and waits until it is shared. Returns its key."""
        image, _ = await self.caching.image(DataSource(data=data), namespace, uuid=uuid)
        await self.shared.written()
        return image.key

    async def key(self, namespace: str = "") -> bytes:
        """The key of the image that the uuid refers to."""
        return (await self.caching.image(BY_UUID, namespace))[0].key

    async def upload(self, data: bytes, namespace: str = "") -> UploadSource:
        file = MediaFile(digest=sha256(data).digest(), data=data)
        return UploadSource(handle=(await self.caching.uploads.store(namespace, file, ttl_seconds=None)).handle)


@asynccontextmanager
async def replica(redis: RedisServer) -> AsyncGenerator[Replica]:
    store = SharedStore(
        parse_store_url(redis.url),
        prefix="glimpse:",
        budgets={Area.MEDIA: 64 << 20, Area.UPLOADS: 8 << 20},
        command_seconds=60,
    )
    shared = SharedMedia(store, MemoryBudget())
    async with caching_loader(upload_bytes=8 << 20, shared=shared) as caching:
        await store.start()
        try:
            yield Replica(caching=caching, shared=shared)
        finally:
            await shared.close()


async def refusal(loading: Awaitable[object]) -> MediaErrorCode:
    with pytest.raises(MediaError) as caught:
        await loading
    return caught.value.code
