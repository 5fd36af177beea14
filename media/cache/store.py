"""Cache of media between requests, separated by cache namespace. Owns everything that the front end caches of media.

The byte limit is divided among four LRU caches: files by hash, decoded media by the hash of their inputs, URLs (for as
long as the media server allows) and uuids. The last two map to file hashes. Concurrent requests for the same work share
it, even when caching is disabled. Independent of file formats and connections.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from glimpse.media.cache.lru import Lru
from glimpse.media.cache.single_flight import SingleFlight

MediaT = TypeVar("MediaT")

_OVERHEAD_BYTES = 512
"""Estimated size of an entry without its value."""
_INDEX_SHARE = 64
"""URLs and uuids each get 1/64 of the limit."""
_INLINE_HASH_BYTES = 1 << 18
"""Larger files are hashed in a thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaFile:
    """A file and its hash."""

    digest: bytes
    """SHA-256."""
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedMedia:
    """Files that a uuid refers to."""

    files: Mapping[int, bytes]
    """File hashes by index: index 0 for a single file, or the sampled frame indices for a list of frames."""
    num_frames: int | None
    """Length of the list of frames; None for a single file."""
    url: str | None
    """URL that the file was fetched from, if any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheResult(Generic[MediaT]):
    """A value and where it came from."""

    value: MediaT
    is_cache_hit: bool
    """True if the value was cached or another request was already producing it."""


class MediaStore:
    """Caches the media of one event loop. A namespace never sees what another one's requests brought."""

    def __init__(self, *, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            max_bytes: Limit for everything cached; 0 disables caching.
            clock: Returns the time in seconds.
        """
        self.is_enabled = max_bytes > 0
        index_bytes = max_bytes // _INDEX_SHARE
        files_bytes = (max_bytes - 2 * index_bytes) // 2
        self._urls = Lru[tuple[str, str], bytes](max_bytes=index_bytes, clock=clock)
        self._named = Lru[tuple[str, str, str], NamedMedia](max_bytes=index_bytes, clock=clock)
        self._files = Lru[tuple[str, bytes], bytes](max_bytes=files_bytes, clock=clock)
        self._decoded = Lru[bytes, Any](max_bytes=max_bytes - 2 * index_bytes - files_bytes, clock=clock)
        self._fetches = SingleFlight[tuple[str, str, int], MediaFile]()
        self._decodes = SingleFlight[bytes, Any]()

    @property
    def num_bytes(self) -> int:
        """Size of everything cached."""
        return sum(cache.num_bytes for cache in (self._urls, self._named, self._files, self._decoded))

    def get_file(self, namespace: str, digest: bytes) -> MediaFile | None:
        """Returns a cached file."""
        data = self._files.get((namespace, digest))
        return None if data is None else MediaFile(digest=digest, data=data)

    def get_named(self, namespace: str, kind: str, uuid: str) -> NamedMedia | None:
        """Returns what a uuid refers to among the namespace's media of that kind. Its files may have been evicted."""
        return self._named.get((namespace, kind, uuid))

    def put_named(self, namespace: str, kind: str, uuid: str, named: NamedMedia, files: Sequence[MediaFile]) -> None:
        """Caches files under a uuid, replacing what the uuid referred to before."""
        for file in files:
            self._put_file(namespace, file)
        num_bytes = _OVERHEAD_BYTES + len(namespace) + len(uuid) + len(named.url or "") + 64 * len(named.files)
        self._named.put((namespace, kind, uuid), named, num_bytes=num_bytes)

    async def fetch(
        self, namespace: str, url: str, max_bytes: int, fetch: Callable[[], Coroutine[Any, Any, tuple[bytes, float]]]
    ) -> CacheResult[MediaFile]:
        """Returns the file at a URL, of at most `max_bytes`, from the cache or by fetching it.

        Args:
            namespace: Cache namespace of the request.
            url: Location of the file.
            max_bytes: Limit that `fetch` enforces.
            fetch: Fetches the file; returns its bytes and for how many seconds they may be reused.
        """

        async def fetch_and_cache() -> MediaFile:
            data, fresh_seconds = await fetch()
            file = MediaFile(digest=await file_digest(data), data=data)
            if fresh_seconds > 0:
                self._put_file(namespace, file)
                num_bytes = _OVERHEAD_BYTES + len(namespace) + len(url)
                self._urls.put((namespace, url), file.digest, num_bytes=num_bytes, seconds=fresh_seconds)
            return file

        digest = self._urls.get((namespace, url))
        cached = None if digest is None else self.get_file(namespace, digest)
        if cached is not None and len(cached.data) <= max_bytes:
            return CacheResult(value=cached, is_cache_hit=True)
        file, is_leader = await self._fetches.run((namespace, url, max_bytes), fetch_and_cache)
        return CacheResult(value=file, is_cache_hit=not is_leader)

    def get_decoded(self, key: bytes) -> Any | None:
        """Returns decoded media; `key` is a `glimpse.media.key.decoded_key`."""
        return self._decoded.get(key)

    def put_decoded(self, key: bytes, media: object, num_bytes: int) -> None:
        """Caches decoded media."""
        self._decoded.put(key, media, num_bytes=num_bytes + _OVERHEAD_BYTES)

    async def decode(
        self, key: bytes, decode: Callable[[], Coroutine[Any, Any, MediaT]], num_bytes: Callable[[MediaT], int]
    ) -> CacheResult[MediaT]:
        """Returns decoded media from the cache, from another request's decode, or by decoding.

        Args:
            key: A `glimpse.media.key.decoded_key`.
            decode: Decodes the media.
            num_bytes: Returns the size of decoded media.
        """

        async def decode_and_cache() -> MediaT:
            decoded = await decode()
            self.put_decoded(key, decoded, num_bytes(decoded))
            return decoded

        cached = self.get_decoded(key)
        if cached is not None:
            return CacheResult(value=cached, is_cache_hit=True)
        decoded, is_leader = await self._decodes.run(key, decode_and_cache)
        return CacheResult(value=cast(MediaT, decoded), is_cache_hit=not is_leader)

    def _put_file(self, namespace: str, file: MediaFile) -> None:
        self._files.put((namespace, file.digest), file.data, num_bytes=len(file.data) + _OVERHEAD_BYTES)


async def file_digest(data: bytes) -> bytes:
    """Returns the SHA-256 of a file, computed in a thread if the file is large."""
    if len(data) <= _INLINE_HASH_BYTES:
        return hashlib.sha256(data).digest()
    return (await asyncio.to_thread(hashlib.sha256, data)).digest()
