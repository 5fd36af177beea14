"""Uploaded files: clients send a file once and refer to it by handle in later requests.

Files arrive in chunks. A file is stored only if it arrived completely, with the announced size and hash.
"""

import asyncio
import math
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from glimpse.media.cache.fair_lru import FairLru
from glimpse.media.cache.media_file import MediaFile, file_digest
from glimpse.media.cache.memory_budget import MemoryBudget, MemoryReservation, MemoryShare
from glimpse.media.cache.single_flight import SingleFlight
from glimpse.media.containers.sniff import find_kind
from glimpse.media.errors import MediaError, MediaErrorCode, store_unavailable, too_large
from glimpse.media.kind import MediaKind
from glimpse.media.limits import MAX_FILE_BYTES
from glimpse.media.shared.keys import Area, owner_of, tenant_of
from glimpse.media.shared.values import (
    OVERHEAD_BYTES,
    Header,
    ReferenceMissingError,
    StoreUnavailableError,
    store_errors,
)

if TYPE_CHECKING:
    from glimpse.media.shared.disk import DiskStore
    from glimpse.media.shared.store import SharedStore

MAX_LISTED = 10_000
"""Uploads of a tenant that are looked through for a list: those used last."""

_HANDLE_BYTES = 24
_ANNOUNCEMENT = "upload "
"""Begins what other processes are told of a removed upload; its handle follows."""


class FileDetails(msgspec.Struct, frozen=True, array_like=True):
    """What an upload's owner calls it."""

    filename: str = ""
    purpose: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """An uploaded file."""

    handle: str
    """Unguessable identifier that requests use."""
    digest: bytes
    """SHA-256 of the file."""
    num_bytes: int
    expires: float
    """Seconds since 1970-01-01 UTC. Later uploads may evict it sooner."""
    created: float = 0.0
    """Seconds since 1970-01-01 UTC."""
    kind: MediaKind | None = None
    """By its first bytes; None: it is no file of a medium."""
    details: FileDetails
    parts: tuple[str, ...] = ()
    """Handles of the parts that it was stored with."""


class _Note(msgspec.Struct, frozen=True, array_like=True):
    """What the shared store has of an upload beside its header, by the names in `Upload`."""

    handle: str
    created: float
    kind: MediaKind | None
    details: FileDetails
    parts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What an upload refers to: a file that is stored once, however many uploads of its owner have it."""

    handle: str
    """Equal for equal files."""
    file: MediaFile
    details: FileDetails


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    upload: Upload
    file: MediaFile


class Uploads:
    """Stores the uploads of one event loop. A cache namespace never sees another one's uploads.

    With a shared store, the store decides which uploads exist, and copies in this memory only avoid transfers. While
    the store is unavailable, uploads can be used where there are copies. New ones are refused: other processes would
    not know them.
    """

    def __init__(
        self,
        *,
        max_bytes: int,
        ttl_seconds: float,
        memory_budget: MemoryBudget,
        max_file_bytes: int = MAX_FILE_BYTES[MediaKind.VIDEO],
        shared: "SharedStore | DiskStore | None" = None,
        max_copied_bytes: int | None = None,
        area: Area = Area.UPLOADS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """
        Args:
            max_bytes: Limit for all uploads together; 0 disables uploads.
            ttl_seconds: Longest lifetime of an upload.
            memory_budget: Budget for the bytes of uploads in progress, and of those read from the shared store.
            max_file_bytes: Limit on one file.
            shared: Shares uploads with other processes, or with later ones; None: they are this one's.
            max_copied_bytes: Limit for copies of what the shared store has; None: `max_bytes`. An upload without a copy
                is read from the store by each request.
            area: Whose budget of the shared store counts. Areas share nothing.
            clock: Returns the seconds since 1970-01-01 UTC.
        """
        self.is_enabled = max_bytes > 0
        self._max_file_bytes = min(max_file_bytes, max_bytes - OVERHEAD_BYTES)
        self._ttl_seconds = ttl_seconds
        self._in_flight = memory_budget
        self._shared = shared
        self._area = area
        self._clock = clock
        self._uploads = FairLru[tuple[str, str], _Stored](
            max_bytes=max_bytes if shared is None or max_copied_bytes is None else max_copied_bytes,
            owner=lambda key: owner_of(area, *key),
            clock=clock,
        )
        self._reads = SingleFlight[tuple[str, str], MediaFile | None]()
        self._num_removals = 0
        """Removals and purges so far. One may come while a removed upload is read, which is not copied then."""
        if shared is not None:
            shared.on_removal(self._forget)

    @property
    def num_bytes(self) -> int:
        """Size of all uploads in this memory."""
        return self._uploads.num_bytes

    @contextmanager
    def receive(
        self,
        *,
        num_bytes: int | None = None,
        client: str = "",
        share: MemoryShare | None = None,
        max_tenant_bytes: int | None = None,
    ) -> Generator["IncomingUpload"]:
        """Begins an upload.

        Args:
            num_bytes: Size of the file, if known.
            client: Whose it is.
            share: Where its bytes count while they arrive, beside what the client holds.
            max_tenant_bytes: Limit on the uploads of its tenant together.

        Raises:
            MediaError: TOO_LARGE.
        """
        max_bytes = self._max_file_bytes
        if max_tenant_bytes is not None:
            max_bytes = min(max_bytes, max(max_tenant_bytes - OVERHEAD_BYTES, 0))
        if num_bytes is not None and num_bytes > max_bytes:
            raise too_large(max_bytes, "an upload")
        with self._in_flight.reservation(share, client=client) as reservation:
            yield IncomingUpload(max_bytes=max_bytes, reservation=reservation)

    async def store(
        self,
        namespace: str,
        file: MediaFile,
        *,
        ttl_seconds: float | None,
        max_tenant_bytes: int | None = None,
        details: FileDetails = FileDetails(),  # noqa: B008 - immutable
        handle: str | None = None,
        parts: Sequence[Part] = (),
    ) -> Upload:
        """Stores a file for `ttl_seconds`, or for the server's limit if that is shorter or None is given.

        Args:
            namespace: Cache namespace.
            file: The file.
            ttl_seconds: Lifetime.
            max_tenant_bytes: Limit on what its tenant has.
            details: What its owner calls it.
            handle: Identifies it, in place of any that has it. None: a new one.
            parts: Stored with it, each once by its handle. They leave with the last upload that has them.

        Where there is no room, the least recently used uploads leave: those of the same tenant if it would have more
        than `max_tenant_bytes`, else those of the tenant that has most.

        Raises:
            MediaError: STORE_UNAVAILABLE; TOO_LARGE.
        """
        self._uploads.drop_expired()
        seconds = min(self._ttl_seconds, ttl_seconds or self._ttl_seconds)
        for part in parts:
            await self._keep_part(namespace, part, seconds, max_tenant_bytes)
        handle = handle or f"file-{secrets.token_urlsafe(_HANDLE_BYTES)}"
        upload = self._describe(handle, file, seconds, details, tuple(part.handle for part in parts))
        if self._shared is not None:
            upload = await self._put_shared(self._shared, namespace, upload, file, max_tenant_bytes)
        self._put(namespace, upload, file, max_tenant_bytes)
        if self._shared is None and not all(self._uploads.get((namespace, part)) for part in upload.parts):
            self._uploads.drop((namespace, upload.handle))
            raise too_large(self._max_file_bytes, "an upload with its parts")
        return upload

    async def _keep_part(self, namespace: str, part: Part, seconds: float, max_tenant_bytes: int | None) -> None:
        """Stores a part for so long, if it is not there."""
        upload = self._describe(part.handle, part.file, seconds, part.details)
        if self._shared is not None:
            key = self._key(self._shared, namespace, part.handle)
            with store_errors("try again, or send the file itself"):
                found = await self._shared.find(self._area, key, min_seconds=seconds)
            if found is None:
                await self._put_shared(self._shared, namespace, upload, part.file, max_tenant_bytes)
        self._put(namespace, upload, part.file, max_tenant_bytes)

    def _describe(
        self, handle: str, file: MediaFile, seconds: float, details: FileDetails, parts: tuple[str, ...] = ()
    ) -> Upload:
        created = self._clock()
        return Upload(
            handle=handle,
            digest=file.digest,
            num_bytes=len(file.data),
            expires=created + seconds,
            created=created,
            kind=find_kind(file.data),
            details=details,
            parts=parts,
        )

    async def _put_shared(
        self,
        shared: "SharedStore | DiskStore",
        namespace: str,
        upload: Upload,
        file: MediaFile,
        max_tenant_bytes: int | None,
    ) -> Upload:
        """Puts an upload into the shared store and returns it as it is there. Raises MediaError."""
        try:
            with store_errors("try again, or send the file itself"):
                header = await self._share(shared, namespace, upload, file, max_tenant_bytes)
        except ReferenceMissingError:
            header = None
        if header is None:
            raise too_large(self._max_file_bytes, "an upload")
        return replace(upload, expires=header.expires)

    async def find(self, namespace: str, handle: str) -> Upload | None:
        """Returns a stored upload. Raises MediaError (STORE_UNAVAILABLE)."""
        local = self._uploads.get((namespace, handle))
        if self._shared is None:
            return None if local is None else local.upload
        try:
            header = await self._shared.find(self._area, self._key(self._shared, namespace, handle))
        except StoreUnavailableError:
            if local is None:
                raise store_unavailable("try again, or send the file itself") from None
            return local.upload
        if header is None:
            self._uploads.drop((namespace, handle))
            return None
        return _described(header)

    async def known(self, namespace: str, handle: str) -> Upload:
        """Returns the upload that a request refers to. Raises MediaError: NOT_CACHED or STORE_UNAVAILABLE."""
        upload = await self.find(namespace, handle)
        if upload is None:
            raise self._not_found()
        return upload

    async def find_all(self, namespace: str) -> "FoundUploads":
        """Returns the uploads of a namespace, of the `MAX_LISTED` that its tenant used last.

        Raises:
            MediaError: STORE_UNAVAILABLE.
        """
        if self._shared is None:
            stored = self._uploads.list_newest(tenant_of(namespace), MAX_LISTED)
            return FoundUploads(lambda: [each.upload for key, each in stored if key[0] == namespace])
        with store_errors("try again"):
            headers = await self._shared.list_newest(self._area, namespace, MAX_LISTED)
        # A tenant's values are of all its namespaces. What is of this one has the key that its handle gives here.
        key_of = partial(self._key, self._shared, namespace)

        def described() -> list[Upload]:
            uploads = ((key, _described(header)) for key, header in headers.items())
            return [upload for key, upload in uploads if upload and key == key_of(upload.handle)]

        return FoundUploads(described)

    @asynccontextmanager
    async def opened(
        self, namespace: str, handle: str, *, seconds: float, client: str = "", share: MemoryShare | None = None
    ) -> AsyncGenerator[tuple[Upload, MediaFile] | None]:
        """Returns an upload and its file, whose memory counts until the block ends; None if there is no such upload.

        Raises:
            MediaError: TOO_LARGE, OVERLOADED or STORE_UNAVAILABLE.
        """
        upload = await self.find(namespace, handle)
        if upload is None:
            yield None
            return
        with self._in_flight.reservation(share, client=client) as reservation:
            reservation.reserve(max(upload.num_bytes, 0))
            yield upload, await self.file(namespace, handle, max_bytes=upload.num_bytes, seconds=seconds)

    async def remove(self, namespace: str, handle: str) -> bool:
        """Removes an upload. Returns whether it existed. Raises MediaError (STORE_UNAVAILABLE)."""
        if self._shared is None:
            return self._uploads.get((namespace, handle)) is not None and self._uploads.drop((namespace, handle))
        with store_errors("try again"):
            key = self._key(self._shared, namespace, handle)
            existed = await self._shared.remove(self._area, key, announcement=f"{_ANNOUNCEMENT}{handle}")
        self._uploads.drop((namespace, handle))
        return existed

    async def file(self, namespace: str, handle: str, *, max_bytes: int, seconds: float) -> MediaFile:
        """Returns an upload's file.

        Args:
            namespace: Cache namespace of the request.
            handle: The upload's.
            max_bytes: Limit on the file.
            seconds: Longest wait for the shared store.

        Raises:
            MediaError: NOT_CACHED, TOO_LARGE or STORE_UNAVAILABLE.
        """
        upload = await self.known(namespace, handle)
        if upload.num_bytes > max_bytes:
            raise too_large(max_bytes)
        local = self._uploads.get((namespace, handle))
        if local is not None and local.file.digest == upload.digest:
            return local.file
        if self._shared is None:
            raise self._not_found()
        read = partial(self._read, self._shared, namespace, upload, seconds)
        file, _ = await self._reads.run((namespace, handle), read)
        if file is None:
            raise self._not_found()
        return file

    async def _read(
        self, shared: "SharedStore | DiskStore", namespace: str, upload: Upload, seconds: float
    ) -> MediaFile | None:
        """Returns the file from the shared store and stores it here too; None if the store does not have it."""
        header = Header(digest=upload.digest, num_bytes=upload.num_bytes, expires=upload.expires, note=b"")
        num_removals = self._num_removals
        with store_errors("try again, or send the file itself"), self._in_flight.reservation() as reservation:
            reservation.reserve(2 * max(upload.num_bytes, 0))
            async with asyncio.timeout(seconds):
                data = await shared.read(self._area, self._key(shared, namespace, upload.handle), header)
        if data is None:
            return None
        file = MediaFile(digest=upload.digest, data=data)
        if num_removals == self._num_removals:
            self._put(namespace, upload, file)
        return file

    async def _share(
        self,
        shared: "SharedStore | DiskStore",
        namespace: str,
        upload: Upload,
        file: MediaFile,
        max_tenant_bytes: int | None = None,
    ) -> Header | None:
        """Puts an upload into the shared store; None if it is too large.

        Raises StoreUnavailableError, or ReferenceMissingError if its parts have left.
        """
        key, seconds = self._key(shared, namespace, upload.handle), upload.expires - self._clock()
        note = _Note(**{name: getattr(upload, name) for name in _Note.__struct_fields__})
        return await shared.put(
            self._area,
            key,
            file.data,
            digest=file.digest,
            seconds=seconds,
            note=msgspec.msgpack.encode(note),
            max_tenant_bytes=max_tenant_bytes,
            refers_to=[self._key(shared, namespace, part) for part in upload.parts],
        )

    def purge(self, prefix: str) -> None:
        """Removes the uploads of the namespaces that begin with `prefix` from this process's memory."""
        self._num_removals += 1
        self._uploads.drop_where(lambda key: key[0].startswith(prefix))

    def _forget(self, announcement: str) -> None:
        """Drops what some process removed."""
        if announcement.startswith(_ANNOUNCEMENT):
            self._num_removals += 1
            handle = announcement.removeprefix(_ANNOUNCEMENT)
            self._uploads.drop_where(lambda key: key[1] == handle)

    async def restore(self) -> None:
        """Puts uploads into a shared store that lost them. Raises StoreUnavailableError."""
        if self._shared is None:
            return
        self._uploads.drop_expired()
        found = ((key[0], self._uploads.get(key)) for key in self._uploads.list_keys())
        kept = [(namespace, stored) for namespace, stored in found if stored is not None]
        for namespace, stored in sorted(kept, key=lambda each: len(each[1].upload.parts)):  # parts first
            key = self._key(self._shared, namespace, stored.upload.handle)
            with suppress(ReferenceMissingError):
                if await self._shared.find(self._area, key) is None:
                    await self._share(self._shared, namespace, stored.upload, stored.file)

    def _put(self, namespace: str, upload: Upload, file: MediaFile, max_tenant_bytes: int | None = None) -> None:
        self._uploads.put(
            (namespace, upload.handle),
            _Stored(upload=upload, file=file),
            num_bytes=len(file.data) + OVERHEAD_BYTES,
            seconds=upload.expires - self._clock(),
            max_own_bytes=math.inf if max_tenant_bytes is None else max_tenant_bytes,
            refers_to=[(namespace, part) for part in upload.parts],
        )

    def _not_found(self) -> MediaError:
        message = "the upload does not exist or has expired; upload the file again and use the new handle"
        if not self.is_enabled:
            message = "uploads are disabled on this server (--upload-cache-bytes 0); send the file itself"
        return MediaError(MediaErrorCode.NOT_CACHED, message)

    def _key(self, shared: "SharedStore | DiskStore", namespace: str, handle: str) -> str:
        return shared.keys.value(self._area, namespace, "upload", handle)


class FoundUploads:
    """Uploads that were found, not read yet: thousands of them take milliseconds."""

    def __init__(self, read: Callable[[], list[Upload]]) -> None:
        self._read = read

    def read(self, others: Sequence[Upload] = ()) -> list[Upload]:
        """Returns them and others, the latest first. Any thread may call it."""
        return sorted([*self._read(), *others], key=lambda upload: (-upload.created, upload.handle))


class IncomingUpload:
    """An upload in progress."""

    def __init__(self, *, max_bytes: int, reservation: MemoryReservation) -> None:
        self._max_bytes = max_bytes
        self._reservation = reservation
        self._data = bytearray()

    def append(self, chunk: bytes) -> None:
        """Adds a chunk. Raises MediaError: TOO_LARGE or OVERLOADED."""
        if len(self._data) + len(chunk) > self._max_bytes:
            raise too_large(self._max_bytes, "an upload")
        self._reservation.reserve(len(chunk))
        self._data += chunk

    def hold(self, num_bytes: int) -> None:
        """Counts the memory of what is stored with it, while it arrives. Raises MediaError: OVERLOADED."""
        self._reservation.reserve(num_bytes)

    async def finish(self, *, digest: bytes | None = None, num_bytes: int | None = None) -> MediaFile:
        """Returns the file.

        Args:
            digest: SHA-256 of the file, if its sender knows it.
            num_bytes: Size of the file, if its sender knows it.

        Raises:
            MediaError: UPLOAD_MISMATCH if it differs from these; OVERLOADED.
        """
        if num_bytes is not None and len(self._data) != num_bytes:
            raise _mismatch(f"expected {num_bytes} bytes as announced, got {len(self._data)}")
        if not self._data:
            raise _mismatch("expected at least 1 byte, got none")
        self._reservation.reserve(len(self._data))  # two copies exist for a moment
        data = bytes(self._data)
        found = await file_digest(data)
        if digest is not None and found != digest:
            raise _mismatch("the SHA-256 of the upload differs from the announced one")
        return MediaFile(digest=found, data=data)


def _described(header: Header) -> Upload | None:
    """Returns the upload that a value of the shared store is; None if it does not say."""
    try:
        note = msgspec.msgpack.decode(header.note, type=_Note)
    except msgspec.MsgspecError:
        return None
    of_note = msgspec.structs.asdict(note)
    return Upload(digest=header.digest, num_bytes=header.num_bytes, expires=header.expires, **of_note)


def _mismatch(message: str) -> MediaError:
    return MediaError(MediaErrorCode.UPLOAD_MISMATCH, message)
