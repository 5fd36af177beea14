"""Loads the source files of media: from the request, a URL, an upload, a local file or the cache.

Enforces limits on time and bytes, and is independent of file formats.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePosixPath
from typing import assert_never

from glimpse.media.cache.fair_share import FairPlaces
from glimpse.media.cache.media_file import MediaFile, NamedMedia, file_digest, text_digest
from glimpse.media.cache.memory_budget import MemoryBudget
from glimpse.media.cache.request_media import RequestMedia, timed
from glimpse.media.cache.store import MediaStore
from glimpse.media.errors import MediaError, MediaErrorCode, store_unavailable, too_large
from glimpse.media.kind import MediaKind
from glimpse.media.shared.values import StoreUnavailableError
from glimpse.media.sources.fetcher import Fetcher
from glimpse.media.sources.local import LocalFiles
from glimpse.media.sources.source import (
    CachedSource,
    DataSource,
    FileSource,
    Source,
    UploadSource,
    UrlSource,
)
from glimpse.media.sources.uploads import Uploads
from glimpse.tasks import run_all

STORED = "media-"
"""Begins the handles of media that belong to stored responses."""

_MAX_CONCURRENT_FRAMES = 4
"""Frames of one video that are fetched at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLimits:
    """Limits on one file, or on several files together."""

    max_bytes: int
    timeout_seconds: float
    """Limit on fetching."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFiles:
    """The files that one media input is decoded from; at least one."""

    kind: MediaKind
    digests: tuple[bytes, ...]
    data: tuple[bytes, ...] | None
    """Reserved by the request; None if the files are no longer cached."""
    uuid: str | None = None
    """For files that came with this request: the client's uuid to cache them under."""
    named: NamedMedia | None = None
    """What `uuid` will refer to."""

    @property
    def num_bytes(self) -> int:
        """Bytes that the request has reserved."""
        return sum(map(len, self.data or ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenDocument:
    """A document whose pages can be drawn."""

    files: SourceFiles
    pages: range
    """Numbers of the pages that were asked for, from 1; at least one."""
    texts: tuple[str, ...]
    """Text layers of these pages; empty if those were not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentPage:
    """A page of an opened document, as an image."""

    files: SourceFiles
    number: int
    """From 1."""
    dpi: int | None
    """The resolution at which it is drawn. None: the reader's."""


class FileLoader:
    """Loads files for one event loop."""

    def __init__(
        self,
        *,
        fetcher: Fetcher,
        local: LocalFiles | None,
        store: MediaStore,
        uploads: Uploads,
        stored: Uploads,
        memory_budget: MemoryBudget,
        limits: Mapping[MediaKind, FileLimits],
        max_fetches: int,
    ) -> None:
        """
        Args:
            local: Reads files of this host; None refuses them.
            stored: Stores the media of stored responses, whose handles begin with `STORED`.
            memory_budget: Budget for files while they are fetched.
            limits: Limits on one file of each kind. Those of a video also apply to all of its frames together.
            max_fetches: Number of concurrent fetches of one client; further ones wait.
        """
        self._fetcher = fetcher
        self._local = local
        self._store = store
        self._uploads = uploads
        self._stored = stored
        self._memory_budget = memory_budget
        self._limits = limits
        self._fetch_places = FairPlaces(max_fetches)

    async def upload_kind(self, namespace: str, handle: str) -> MediaKind | None:
        """Returns what kind of medium an upload is; None: of none. Raises MediaError: NOT_CACHED, STORE_UNAVAILABLE."""
        return (await self._uploads.known(namespace, handle)).kind

    async def load(
        self, source: Source | CachedSource, kind: MediaKind, uuid: str | None, batch: RequestMedia
    ) -> SourceFiles:
        """Loads a single file. Raises MediaError."""
        if isinstance(source, CachedSource):
            return await self.load_cached(await self.named(source, kind, batch), [0], kind, batch)
        url_digest = text_digest(str(source.url)) if isinstance(source, UrlSource) else None
        file = await self._fetched_before(url_digest, kind, uuid, batch)
        file = file or await self._file(source, self._limits[kind], batch)
        named = NamedMedia(files={0: file.digest}, num_frames=None, url_digest=url_digest)
        return _sent_files([file], kind, uuid, named)

    async def load_frames(
        self, sources: Sequence[Source], frame_indices: Sequence[int], uuid: str | None, batch: RequestMedia
    ) -> SourceFiles:
        """Loads the sampled frames of a video, a few at a time. Raises MediaError."""
        total = self._limits[MediaKind.VIDEO]
        files: list[MediaFile] = []
        try:
            async with asyncio.timeout(total.timeout_seconds):
                for start in range(0, len(frame_indices), _MAX_CONCURRENT_FRAMES):
                    some = [sources[index] for index in frame_indices[start : start + _MAX_CONCURRENT_FRAMES]]
                    left = total.max_bytes - sum(len(file.data) for file in files)
                    files += await self._some_frames(some, left, batch)
        except TimeoutError:
            message = f"the media servers did not deliver all frames within {total.timeout_seconds:g} s"
            raise MediaError(MediaErrorCode.FETCH_TIMEOUT, message) from None
        if sum(len(file.data) for file in files) > total.max_bytes:
            raise too_large(total.max_bytes, "frames")
        digests = {index: file.digest for index, file in zip(frame_indices, files, strict=True)}
        named = NamedMedia(files=digests, num_frames=len(sources), url_digest=None)
        return _sent_files(files, MediaKind.VIDEO, uuid, named)

    def cache(self, files: SourceFiles, batch: RequestMedia) -> None:
        """Caches files under their uuid, if they have one. Call this after the files have been decoded."""
        if files.uuid is not None and files.named is not None and files.data is not None:
            pairs = zip(files.digests, files.data, strict=True)
            cached = [MediaFile(digest=digest, data=data) for digest, data in pairs]
            self._store.put_named(batch.namespace, files.kind, files.uuid, files.named, cached)

    async def named(self, source: CachedSource, kind: MediaKind, batch: RequestMedia) -> NamedMedia:
        """Returns what a uuid refers to. Raises MediaError: NOT_CACHED or STORE_UNAVAILABLE."""
        try:
            named = await self._store.find_named(batch.namespace, kind, source.uuid)
        except StoreUnavailableError:
            raise _uuid_unavailable(kind) from None
        if named is None:
            raise not_cached(kind, is_enabled=self._store.is_enabled)
        return named

    async def load_cached(
        self, named: NamedMedia, indices: Sequence[int], kind: MediaKind, batch: RequestMedia
    ) -> SourceFiles:
        """Returns the files of cached media at these indices.

        Raises:
            MediaError: NOT_CACHED if one was never sent, or STORE_UNAVAILABLE.
        """
        if not set(indices) <= named.files.keys():
            raise not_cached(kind)
        digests = tuple(named.files[index] for index in indices)
        try:
            files = [await self._find_file(digest, kind, batch) for digest in digests]
        except StoreUnavailableError:
            raise _uuid_unavailable(kind) from None
        data = tuple(file.data for file in files if file is not None)
        if len(data) < len(files):
            return SourceFiles(kind=kind, digests=digests, data=None)
        batch.reservation.reserve(sum(map(len, data)))
        batch.count_named(len(data))
        return SourceFiles(kind=kind, digests=digests, data=data)

    async def _find_file(self, digest: bytes, kind: MediaKind, batch: RequestMedia) -> MediaFile | None:
        limits = self._limits[kind]
        return await self._store.find_file(batch.namespace, digest, limits.max_bytes, limits.timeout_seconds)

    async def _fetched_before(
        self, url_digest: bytes | None, kind: MediaKind, uuid: str | None, batch: RequestMedia
    ) -> MediaFile | None:
        """Returns the file that was fetched from this URL under this uuid, which the client says is unchanged."""
        if url_digest is None or uuid is None:
            return None
        try:
            named = await self._store.find_named(batch.namespace, kind, uuid)
            if named is None or named.url_digest != url_digest:
                return None
            file = await self._find_file(named.files[0], kind, batch)
        except StoreUnavailableError:
            return None
        if file is not None:
            batch.reservation.reserve(len(file.data))
            batch.count_fetch(is_cache_hit=True)
        return file

    async def _some_frames(self, sources: Sequence[Source], max_bytes: int, batch: RequestMedia) -> list[MediaFile]:
        if max_bytes <= 0:
            raise too_large(self._limits[MediaKind.VIDEO].max_bytes, "frames")
        each = self._limits[MediaKind.IMAGE]
        limits = replace(each, max_bytes=min(max_bytes, each.max_bytes))
        return await run_all(self._file(source, limits, batch) for source in sources)

    async def _file(self, source: Source, limits: FileLimits, batch: RequestMedia) -> MediaFile:
        """Loads a file and reserves its memory."""
        match source:
            case DataSource(data=data):
                if len(data) > limits.max_bytes:
                    raise too_large(limits.max_bytes)
                batch.reservation.reserve(len(data))
                return MediaFile(digest=await file_digest(data), data=data)
            case UploadSource(handle=handle):
                uploads = self._stored if handle.startswith(STORED) else self._uploads
                file = await uploads.file(
                    batch.namespace, handle, max_bytes=limits.max_bytes, seconds=limits.timeout_seconds
                )
            case FileSource(path=path):
                file = await self._read(path, limits, batch.client)
            case UrlSource():
                file = await self._fetch(source, limits, batch)
            case _:
                assert_never(source)
        batch.reservation.reserve(len(file.data))
        return file

    async def _read(self, path: PurePosixPath, limits: FileLimits, client: str) -> MediaFile:
        if self._local is None:
            message = "this server does not read file: URLs; send the bytes or a data URL"
            raise MediaError(MediaErrorCode.URL_REFUSED, message)
        async with self._fetch_places.place(client):
            data = await asyncio.to_thread(self._local.read, path, max_bytes=limits.max_bytes)
        return MediaFile(digest=await file_digest(data), data=data)

    async def _fetch(self, source: UrlSource, limits: FileLimits, batch: RequestMedia) -> MediaFile:
        fetch_file = partial(self._fetch_uncached, source, limits, batch.client)
        with timed(batch.usage.fetch_waits):
            result = await self._store.fetch(batch.namespace, str(source.url), limits.max_bytes, fetch_file)
        batch.count_fetch(is_cache_hit=result.is_cache_hit)
        return result.value

    async def _fetch_uncached(self, source: UrlSource, limits: FileLimits, client: str) -> tuple[bytes, float]:
        """Returns the bytes and their freshness in seconds.

        Reserves memory of its own while it runs, because several requests may wait for it.
        """
        async with self._fetch_places.place(client):
            with self._memory_budget.reservation(client=client) as reservation:
                fetched = await self._fetcher.fetch(
                    source.url,
                    max_bytes=limits.max_bytes,
                    timeout_seconds=limits.timeout_seconds,
                    on_bytes=reservation.reserve,
                )
        return fetched.data, fetched.fresh_seconds


def not_cached(kind: str, *, is_enabled: bool = True) -> MediaError:
    """Returns the error for a uuid without cached media; `is_enabled` says whether the server caches media at all."""
    message = f"the cache has no {kind} under this uuid; send the {kind} with this uuid"
    if not is_enabled:
        message = f"the media cache is disabled (--media-cache-bytes, media_cache_bytes); send the {kind} itself"
    return MediaError(MediaErrorCode.NOT_CACHED, message)


def _uuid_unavailable(kind: str) -> MediaError:
    return store_unavailable(f"send the {kind} with this uuid, or try again")


def _sent_files(files: Sequence[MediaFile], kind: MediaKind, uuid: str | None, named: NamedMedia) -> SourceFiles:
    digests, data = tuple(file.digest for file in files), tuple(file.data for file in files)
    return SourceFiles(kind=kind, digests=digests, data=data, uuid=uuid, named=named)
