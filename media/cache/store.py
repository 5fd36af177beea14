"""What is kept of media between requests, by whose they are: the one owner of all that is cached in the front end.

Four shelves share one budget of bytes. Files lie there by their hash, and media that are ready for the engine by the
hash of how they are made of files. Two small ones lead to files: from URLs, for as long as the media server allows, and
from names that clients gave (uuids). Work that several requests wait for is done once, also where nothing is kept.
Knows neither formats nor connections.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from glimpse.media.cache.lru import Lru
from glimpse.media.cache.single_flight import SingleFlight

MediumT = TypeVar("MediumT")

_OVERHEAD_BYTES = 512
"""Of an entry, beside what is in it."""
_NAMES_SHARE = 64
"""One part in so many is for URLs, and one for names."""
_QUICKLY_HASHED_BYTES = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaFile:
    """A file and its hash."""

    digest: bytes
    """SHA-256."""
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedMedia:
    """What a client's name for a medium stands for."""

    files: Mapping[int, bytes]
    """The hashes of its files by their places: of one file 0, of a list of frames those that were taken."""
    num_frames: int | None
    """The length of the list of frames; None where the medium is one file."""
    url: str | None
    """Where the file was fetched from, if it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheResult(Generic[MediumT]):
    """What was asked for."""

    value: MediumT
    is_cache_hit: bool
    """It was kept, or another request was at it already."""


class MediaStore:
    """Keeps media of one event loop. A tenant never finds what another's requests brought."""

    def __init__(self, *, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`max_bytes` of 0 keeps nothing; `clock` tells the time in seconds."""
        self.is_enabled = max_bytes > 0
        """Whether anything is kept at all."""
        names_bytes = max_bytes // _NAMES_SHARE
        files_bytes = (max_bytes - 2 * names_bytes) // 2
        self._urls = Lru[tuple[str, str], bytes](max_bytes=names_bytes, clock=clock)
        self._names = Lru[tuple[str, str, str], NamedMedia](max_bytes=names_bytes, clock=clock)
        self._files = Lru[tuple[str, bytes], bytes](max_bytes=files_bytes, clock=clock)
        self._media = Lru[bytes, Any](max_bytes=max_bytes - 2 * names_bytes - files_bytes, clock=clock)
        self._fetches = SingleFlight[tuple[str, str, int], MediaFile]()
        self._decodings = SingleFlight[bytes, Any]()

    @property
    def num_bytes(self) -> int:
        """All that is kept."""
        return sum(shelf.num_bytes for shelf in (self._urls, self._names, self._files, self._media))

    def file(self, namespace: str, digest: bytes) -> MediaFile | None:
        """A file that is kept."""
        data = self._files.get((namespace, digest))
        return None if data is None else MediaFile(digest=digest, data=data)

    def named(self, namespace: str, kind: str, uuid: str) -> NamedMedia | None:
        """What the tenant's name stands for, among its media of that kind. Its files may be kept no more."""
        return self._names.get((namespace, kind, uuid))

    def name(self, namespace: str, kind: str, uuid: str, named: NamedMedia, files: Sequence[MediaFile]) -> None:
        """Keeps a medium's files under a name, which stood for another medium before, perhaps."""
        for file in files:
            self._cache_file(namespace, file)
        num_bytes = _OVERHEAD_BYTES + len(namespace) + len(uuid) + len(named.url or "") + 64 * len(named.files)
        self._names.put((namespace, kind, uuid), named, num_bytes=num_bytes)

    async def download(
        self, namespace: str, url: str, max_bytes: int, fetch: Callable[[], Coroutine[Any, Any, tuple[bytes, float]]]
    ) -> CacheResult[MediaFile]:
        """The file at a URL, of at most `max_bytes`.

        Args:
            tenant: who asks.
            url: where it is.
            max_bytes: the most that `fetch` reads.
            fetch: fetches it, and tells for how many seconds it may be used again.
        """

        async def fetch_and_keep() -> MediaFile:
            data, fresh_seconds = await fetch()
            file = MediaFile(digest=await file_digest(data), data=data)
            if fresh_seconds > 0:
                self._cache_file(namespace, file)
                num_bytes = _OVERHEAD_BYTES + len(namespace) + len(url)
                self._urls.put((namespace, url), file.digest, num_bytes=num_bytes, seconds=fresh_seconds)
            return file

        digest = self._urls.get((namespace, url))
        kept = None if digest is None else self.file(namespace, digest)
        if kept is not None and len(kept.data) <= max_bytes:
            return CacheResult(value=kept, is_cache_hit=True)
        file, is_leader = await self._fetches.share((namespace, url, max_bytes), fetch_and_keep)
        return CacheResult(value=file, is_cache_hit=not is_leader)

    def cached_medium(self, key: bytes) -> Any | None:
        """A medium that is kept; `key` is of `glimpse.media.key.decoded_key`."""
        return self._media.get(key)

    def cache_medium(self, key: bytes, medium: object, num_bytes: int) -> None:
        """Keeps one that was made elsewhere."""
        self._media.put(key, medium, num_bytes=num_bytes + _OVERHEAD_BYTES)

    async def decoded(
        self, key: bytes, decode: Callable[[], Coroutine[Any, Any, MediumT]], num_bytes: Callable[[MediumT], int]
    ) -> CacheResult[MediumT]:
        """A medium that is kept, or is being made, or is made now.

        Args:
            key: of `glimpse.media.key.decoded_key`.
            decode: makes it.
            num_bytes: tells its size.
        """

        async def decode_and_keep() -> MediumT:
            made = await decode()
            self.cache_medium(key, made, num_bytes(made))
            return made

        kept = self.cached_medium(key)
        if kept is not None:
            return CacheResult(value=kept, is_cache_hit=True)
        made, is_leader = await self._decodings.share(key, decode_and_keep)
        return CacheResult(value=cast(MediumT, made), is_cache_hit=not is_leader)

    def _cache_file(self, namespace: str, file: MediaFile) -> None:
        self._files.put((namespace, file.digest), file.data, num_bytes=len(file.data) + _OVERHEAD_BYTES)


async def file_digest(data: bytes) -> bytes:
    """SHA-256, in a thread where it takes long."""
    if len(data) <= _QUICKLY_HASHED_BYTES:
        return hashlib.sha256(data).digest()
    return (await asyncio.to_thread(hashlib.sha256, data)).digest()
