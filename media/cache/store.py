"""Cache of media between requests, separated by cache namespace. Owns everything that the front end caches of media.

The byte limit is divided among four LRU caches: files by hash, decoded media by the hash of their inputs, URLs (for as
long as the media server allows) and uuids. The last two map to file hashes. Concurrent requests for the same work share
it, even when caching is disabled. Independent of file formats and connections.

With a shared store, what uuids refer to is looked up there, so that all replicas agree. Files and URLs are looked up
here first. Decoded media are never shared.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from glimpse.media.cache.lru import Lru
from glimpse.media.cache.media_file import MediaFile, NamedMedia, file_digest
from glimpse.media.cache.shared_media import LocalName, SharedMedia
from glimpse.media.cache.single_flight import SingleFlight
from glimpse.media.shared.values import StoreUnavailableError

MediaT = TypeVar("MediaT")

_OVERHEAD_BYTES = 512
"""Estimated size of an entry without its value."""
_INDEX_SHARE = 64
"""URLs and uuids each get 1/64 of the limit."""
_URL_SECONDS = 2.0
"""Longest wait for the shared store before a URL is fetched instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheResult(Generic[MediaT]):
    """A value and where it came from."""

    value: MediaT
    is_cache_hit: bool
    """True if the value was cached or another request was already producing it."""


class MediaStore:
    """Caches the media of one event loop. A namespace never sees what another one's requests brought."""

    def __init__(
        self, *, max_bytes: int, shared: SharedMedia | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """
        Args:
            max_bytes: Limit for everything cached; 0 disables caching.
            shared: Shares files, uuids and URLs with other replicas; None: this cache is alone.
            clock: Returns the time in seconds.
        """
        self.is_enabled = max_bytes > 0
        self._shared = shared if self.is_enabled else None
        if shared is not None:
            shared.store.on_purge(lambda prefix, _: self.purge(prefix))
            shared.store.on_reconnect(self.restore)
        index_bytes = max_bytes // _INDEX_SHARE
        files_bytes = (max_bytes - 2 * index_bytes) // 2
        self._urls = Lru[tuple[str, str], bytes](max_bytes=index_bytes, clock=clock)
        self._named = Lru[tuple[str, str, str], LocalName](max_bytes=index_bytes, clock=clock)
        self._files = Lru[tuple[str, bytes], bytes](max_bytes=files_bytes, clock=clock)
        self._decoded = Lru[tuple[str, bytes], Any](max_bytes=max_bytes - 2 * index_bytes - files_bytes, clock=clock)
        self._fetches = SingleFlight[tuple[str, str, int], CacheResult[MediaFile]]()
        self._reads = SingleFlight[tuple[str, bytes, int], MediaFile | None]()
        self._decodes = SingleFlight[tuple[str, bytes], Any]()

    @property
    def shared(self) -> SharedMedia | None:
        """What this cache shares with other replicas; None if it shares nothing."""
        return self._shared

    @property
    def num_bytes(self) -> int:
        """Size of everything cached."""
        return sum(cache.num_bytes for cache in (self._urls, self._named, self._files, self._decoded))

    async def find_file(self, namespace: str, digest: bytes, max_bytes: int, seconds: float) -> MediaFile | None:
        """Returns a cached file; from the shared store, one of at most `max_bytes`.

        Raises:
            StoreUnavailableError: The shared store might have it, but does not deliver it within `seconds`.
        """
        shared, cached = self._shared, self._get_file(namespace, digest)
        if cached is not None or shared is None:
            return cached

        async def read() -> MediaFile | None:
            file = await shared.read_file(namespace, digest, max_bytes, seconds)
            if file is not None:
                self._put_file(namespace, file)
            return file

        return (await self._reads.run((namespace, digest, max_bytes), read))[0]

    async def find_named(self, namespace: str, kind: str, uuid: str) -> NamedMedia | None:
        """Returns what a uuid refers to among the namespace's media of that kind. Its files may have been evicted.

        Raises:
            StoreUnavailableError: Only the shared store might know.
        """
        name = self._named.get((namespace, kind, uuid))
        if self._shared is not None:
            name = await self._latest(self._shared, namespace, kind, uuid, name)
        return None if name is None else name.media

    def put_named(self, namespace: str, kind: str, uuid: str, named: NamedMedia, files: Sequence[MediaFile]) -> None:
        """Caches files under a uuid, replacing what the uuid referred to before. Without files nothing is shared."""
        for file in files:
            self._put_file(namespace, file)
        name = LocalName(media=named)
        self._put_name(namespace, kind, uuid, name)
        if self._shared is not None and files:
            self._shared.write_named(namespace, kind, uuid, name, files)

    async def fetch(
        self, namespace: str, url: str, max_bytes: int, fetch: Callable[[], Coroutine[Any, Any, tuple[bytes, float]]]
    ) -> CacheResult[MediaFile]:
        """Returns the file at a URL, of at most `max_bytes`, from the cache or by fetching it.

        Args:
            fetch: Fetches the file; returns its bytes and for how many seconds they may be reused.
        """

        async def fetch_and_cache() -> CacheResult[MediaFile]:
            shared = await self._shared_url(namespace, url, max_bytes)
            if shared is not None:
                return CacheResult(value=shared, is_cache_hit=True)
            data, fresh_seconds = await fetch()
            file = MediaFile(digest=await file_digest(data), data=data)
            if fresh_seconds > 0:
                self._put_url(namespace, url, file, fresh_seconds)
                if self._shared is not None:
                    self._shared.write_url(namespace, url, file, fresh_seconds)
            return CacheResult(value=file, is_cache_hit=False)

        digest = self._urls.get((namespace, url))
        cached = None if digest is None else self._get_file(namespace, digest)
        if cached is not None and len(cached.data) <= max_bytes:
            return CacheResult(value=cached, is_cache_hit=True)
        result, is_leader = await self._fetches.run((namespace, url, max_bytes), fetch_and_cache)
        return CacheResult(value=result.value, is_cache_hit=result.is_cache_hit or not is_leader)

    async def restore(self) -> None:
        """Writes to the shared store what uuids refer to here and the store does not know, or knows less recently."""
        if self._shared is None:
            return
        for namespace, kind, uuid in self._named.list_keys():
            await self.find_named(namespace, kind, uuid)
            await self._shared.written()

    def get_decoded(self, namespace: str, key: bytes) -> Any | None:
        """Returns decoded media; `key` is a `glimpse.media.key.decoded_key`."""
        return self._decoded.get((namespace, key))

    def put_decoded(self, namespace: str, key: bytes, media: object, num_bytes: int) -> None:
        self._decoded.put((namespace, key), media, num_bytes=num_bytes + _OVERHEAD_BYTES)

    async def decode(
        self,
        namespace: str,
        key: bytes,
        decode: Callable[[], Coroutine[Any, Any, MediaT]],
        num_bytes: Callable[[MediaT], int],
    ) -> CacheResult[MediaT]:
        """Returns decoded media from the cache, from another request's decode, or by decoding.

        Args:
            key: A `glimpse.media.key.decoded_key`.
            num_bytes: Returns the size of decoded media.
        """

        async def decode_and_cache() -> MediaT:
            decoded = await decode()
            self.put_decoded(namespace, key, decoded, num_bytes(decoded))
            return decoded

        cached = self.get_decoded(namespace, key)
        if cached is not None:
            return CacheResult(value=cached, is_cache_hit=True)
        decoded, is_leader = await self._decodes.run((namespace, key), decode_and_cache)
        return CacheResult(value=cast(MediaT, decoded), is_cache_hit=not is_leader)

    def purge(self, prefix: str) -> None:
        """Removes everything of the namespaces that begin with `prefix` from this replica's memory."""
        self._urls.drop_where(lambda key: key[0].startswith(prefix))
        self._named.drop_where(lambda key: key[0].startswith(prefix))
        self._files.drop_where(lambda key: key[0].startswith(prefix))
        self._decoded.drop_where(lambda key: key[0].startswith(prefix))

    async def _latest(
        self, shared: SharedMedia, namespace: str, kind: str, uuid: str, local: LocalName | None
    ) -> LocalName | None:
        """Returns what was sent last with a uuid, to this replica (`local`) or to another one.

        While `local` is being written, the store has an earlier one. The store also says which one is later.
        """
        try:
            found = await shared.find_named(namespace, kind, uuid)
            if local is not None and (found is None or found.sent < await shared.sent(local)):
                self._write_again(shared, namespace, kind, uuid, local)
                return local
        except StoreUnavailableError:
            if local is None:
                raise
            return local
        if found is None:
            return None
        name = LocalName(media=found.media, sent=found.sent)
        self._put_name(namespace, kind, uuid, name)
        return name

    def _write_again(self, shared: SharedMedia, namespace: str, kind: str, uuid: str, name: LocalName) -> None:
        """Shares a uuid once more, if its files are still here."""
        files = [self._get_file(namespace, digest) for digest in name.media.files.values()]
        found = [file for file in files if file is not None]
        if len(found) == len(files):
            shared.write_named(namespace, kind, uuid, name, found)

    async def _shared_url(self, namespace: str, url: str, max_bytes: int) -> MediaFile | None:
        """Returns the file of a URL that another replica fetched; None if the shared store does not answer soon."""
        if self._shared is None:
            return None
        try:
            async with asyncio.timeout(_URL_SECONDS):
                found = await self._shared.find_url(namespace, url)
                file = await self.find_file(namespace, found[0], max_bytes, _URL_SECONDS) if found else None
        except (StoreUnavailableError, TimeoutError):
            return None
        if found is None or file is None or len(file.data) > max_bytes:
            return None
        self._put_url(namespace, url, file, found[1])
        return file

    def _get_file(self, namespace: str, digest: bytes) -> MediaFile | None:
        data = self._files.get((namespace, digest))
        return None if data is None else MediaFile(digest=digest, data=data)

    def _put_name(self, namespace: str, kind: str, uuid: str, name: LocalName) -> None:
        num_bytes = _OVERHEAD_BYTES + len(namespace) + len(uuid) + 64 * len(name.media.files)
        self._named.put((namespace, kind, uuid), name, num_bytes=num_bytes)

    def _put_url(self, namespace: str, url: str, file: MediaFile, fresh_seconds: float) -> None:
        self._put_file(namespace, file)
        num_bytes = _OVERHEAD_BYTES + len(namespace) + len(url)
        self._urls.put((namespace, url), file.digest, num_bytes=num_bytes, seconds=fresh_seconds)

    def _put_file(self, namespace: str, file: MediaFile) -> None:
        self._files.put((namespace, file.digest), file.data, num_bytes=len(file.data) + _OVERHEAD_BYTES)
