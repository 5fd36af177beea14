"""Sources → files: what came with the request, is fetched, was uploaded, or was sent before under a name.

Knows limits of time and bytes, and what is kept; no formats.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import assert_never

from glimpse.media.cache.memory_budget import MemoryBudget
from glimpse.media.cache.request_media import Batch
from glimpse.media.cache.store import MediaFile, MediaStore, NamedMedia, file_digest
from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.sources.fetch import fetch
from glimpse.media.sources.local import LocalFiles
from glimpse.media.sources.policy import FetchPolicy
from glimpse.media.sources.source import CachedSource, DataSource, FileSource, Source, UploadSource, UrlSource
from glimpse.media.sources.uploads import Uploads

_AT_ONCE = 4
"""Pictures of one clip that are fetched at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLimits:
    """Limits on a file, or on several together."""

    max_bytes: int
    timeout_seconds: float
    """For fetching."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaReference:
    """Under what a medium is known to its client."""

    kind: str
    """As clients call it: "picture", "clip" or "sound"."""
    uuid: str | None
    """None: it has no name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFiles:
    """The files of a medium, at least one."""

    digests: tuple[bytes, ...]
    data: tuple[bytes, ...] | None
    """Held by the request; None where they are kept no more."""
    label: MediaReference | None = None
    """Of files that came with this request: under what they are to be known."""
    named: NamedMedia | None = None
    """What the label's name is to stand for."""

    @property
    def num_bytes(self) -> int:
        """Held by the request."""
        return sum(map(len, self.data or ()))


class FileLoader:
    """Loads files, of one event loop."""

    def __init__(
        self,
        *,
        policy: FetchPolicy,
        local: LocalFiles | None,
        store: MediaStore,
        uploads: Uploads,
        memory_budget: MemoryBudget,
        max_fetches: int,
    ) -> None:
        """`max_fetches` run at the same time; further ones wait. Without `local` no file of this host is read."""
        self._policy = policy
        self._local = local
        self._store = store
        self._uploads = uploads
        self._in_flight = memory_budget
        self._turns = asyncio.Semaphore(max_fetches)

    async def one(self, source: Source, label: MediaReference, limits: FileLimits, batch: Batch) -> SourceFiles:
        """The file of a medium. Raises MediaError."""
        url = str(source.url) if isinstance(source, UrlSource) else None
        file = self._cached_fetch(url, label, batch) or await self._file(source, limits, batch)
        named = NamedMedia(files={0: file.digest}, num_frames=None, url=url)
        return SourceFiles(digests=(file.digest,), data=(file.data,), label=label, named=named)

    async def frames(
        self,
        sources: Sequence[Source],
        frame_indices: Sequence[int],
        label: MediaReference,
        *,
        each: FileLimits,
        together: FileLimits,
        batch: Batch,
    ) -> SourceFiles:
        """The files of those of a clip's pictures that are taken, a few at a time. Raises MediaError."""
        files: list[MediaFile] = []
        try:
            async with asyncio.timeout(together.timeout_seconds):
                for start in range(0, len(frame_indices), _AT_ONCE):
                    some = [sources[index] for index in frame_indices[start : start + _AT_ONCE]]
                    left = together.max_bytes - sum(len(file.data) for file in files)
                    files += await self._some(some, left, each, together, batch)
        except TimeoutError:
            message = f"the media servers did not deliver all frames within {together.timeout_seconds:g} s"
            raise MediaError(MediaErrorCode.FETCH_TIMEOUT, message) from None
        if sum(len(file.data) for file in files) > together.max_bytes:
            raise _too_large(together.max_bytes)
        digests = tuple(file.digest for file in files)
        named = NamedMedia(files=dict(zip(frame_indices, digests, strict=True)), num_frames=len(sources), url=None)
        return SourceFiles(digests=digests, data=tuple(file.data for file in files), label=label, named=named)

    def name(self, files: SourceFiles, batch: Batch) -> None:
        """Keeps files under their name, if they have one: to be called once they have proved to be a medium."""
        label, named, data = files.label, files.named, files.data
        if label is not None and label.uuid is not None and named is not None and data is not None:
            kept = [MediaFile(digest=digest, data=each) for digest, each in zip(files.digests, data, strict=True)]
            self._store.name(batch.namespace, label.kind, label.uuid, named, kept)

    def named(self, source: CachedSource, kind: str, batch: Batch) -> NamedMedia:
        """What a name stands for. Raises MediaError (NOT_CACHED)."""
        named = self._store.named(batch.namespace, kind, source.uuid)
        if named is None:
            raise not_cached(kind, can_be=self._store.is_enabled)
        return named

    def kept(self, named: NamedMedia, places: Sequence[int], kind: str, batch: Batch) -> SourceFiles:
        """The files of a named medium in these places. Raises MediaError (NOT_CACHED) where there was none in one."""
        if not set(places) <= named.files.keys():
            raise not_cached(kind)
        digests = tuple(named.files[place] for place in places)
        files = [self._store.file(batch.namespace, digest) for digest in digests]
        data = tuple(file.data for file in files if file is not None)
        if len(data) < len(files):
            return SourceFiles(digests=digests, data=None)
        batch.reservation.take(sum(map(len, data)))
        return SourceFiles(digests=digests, data=data)

    def _cached_fetch(self, url: str | None, label: MediaReference, batch: Batch) -> MediaFile | None:
        """The file that is kept under the name since it was fetched from this URL: the caller says it is the same."""
        if url is None or label.uuid is None:
            return None
        named = self._store.named(batch.namespace, label.kind, label.uuid)
        file = self._store.file(batch.namespace, named.files[0]) if named is not None and named.url == url else None
        if file is not None:
            batch.reservation.take(len(file.data))
            batch.count_fetch(is_cache_hit=True)
        return file

    async def _some(
        self, sources: Sequence[Source], max_bytes: int, each: FileLimits, together: FileLimits, batch: Batch
    ) -> list[MediaFile]:
        if max_bytes <= 0:
            raise _too_large(together.max_bytes)
        limits = FileLimits(max_bytes=min(max_bytes, each.max_bytes), timeout_seconds=each.timeout_seconds)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._file(source, limits, batch)) for source in sources]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        return [task.result() for task in tasks]

    async def _file(self, source: Source, limits: FileLimits, batch: Batch) -> MediaFile:
        """A file, held by the request."""
        match source:
            case DataSource(data=data):
                if len(data) > limits.max_bytes:
                    raise _too_large(limits.max_bytes)
                batch.reservation.take(len(data))
                return MediaFile(digest=await file_digest(data), data=data)
            case UploadSource(handle=handle):
                file = self._uploads.file(batch.namespace, handle)
                if len(file.data) > limits.max_bytes:
                    raise _too_large(limits.max_bytes)
            case FileSource(path=path):
                file = await self._read(path, limits)
            case UrlSource():
                file = await self._downloaded(source, limits, batch)
            case _:
                assert_never(source)
        batch.reservation.take(len(file.data))
        return file

    async def _read(self, path: PurePosixPath, limits: FileLimits) -> MediaFile:
        if self._local is None:
            raise MediaError(MediaErrorCode.URL_REFUSED, "file: URLs are not read; send the bytes, or a data URL")
        async with self._turns:
            data = await asyncio.to_thread(self._local.read, path, max_bytes=limits.max_bytes)
        return MediaFile(digest=await file_digest(data), data=data)

    async def _downloaded(self, source: UrlSource, limits: FileLimits, batch: Batch) -> MediaFile:
        download = partial(self._fetch, source, limits)
        with batch.fetching():
            got = await self._store.download(batch.namespace, str(source.url), limits.max_bytes, download)
        batch.count_fetch(is_cache_hit=got.is_cache_hit)
        return got.value

    async def _fetch(self, source: UrlSource, limits: FileLimits) -> tuple[bytes, float]:
        """The bytes, and the seconds for which they may be used again. Held by itself: several requests may wait."""
        async with self._turns:
            with self._in_flight.reservation() as reservation:
                fetched = await fetch(
                    source.url,
                    policy=self._policy,
                    max_bytes=limits.max_bytes,
                    timeout_seconds=limits.timeout_seconds,
                    on_bytes=reservation.take,
                )
        return fetched.data, fetched.fresh_seconds


def not_cached(kind: str, *, can_be: bool = True) -> MediaError:
    """The refusal of a medium that is only named."""
    why = "is kept under this uuid, or no longer" if can_be else "is kept here (--media-cache-bytes, media_cache_bytes)"
    then = "once, with this uuid" if can_be else "itself"
    return MediaError(MediaErrorCode.NOT_CACHED, f"no {kind} {why}; send the {kind} {then}")


def _too_large(max_bytes: int) -> MediaError:
    return MediaError(MediaErrorCode.TOO_LARGE, f"the medium is larger than {max_bytes} bytes")
