"""Uploads of a server with several front ends: the supervisor has them, and front ends ask for them."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from glimpse.media.cache.fair_lru import FairLru
from glimpse.media.shared.keys import Area, StoreKeys
from glimpse.media.shared.values import CHUNK_BYTES, OVERHEAD_BYTES, Header, StoreUnavailableError
from glimpse.server.processes.messages import (
    AppendUpload,
    BeginUpload,
    FindUpload,
    ReadUpload,
    RemoveUpload,
    UploadCall,
    UploadChunk,
    UploadExists,
    UploadHeader,
    UploadRemoved,
    UploadReply,
)
from glimpse.server.processes.peer import Peer, PeerGoneError

_KEYS = StoreKeys("")

ReplyT = TypeVar("ReplyT", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    header: Header
    chunks: list[bytes] = field(default_factory=list[bytes])


class UploadOwner:
    """The supervisor's uploads. It evicts as one front end alone does: the tenant that has most loses its oldest.

    An upload takes its room when it begins to arrive, and is visible once it is complete.
    """

    def __init__(
        self, *, max_bytes: int, on_removed: Callable[[UploadRemoved], None], clock: Callable[[], float] = time.time
    ) -> None:
        """
        Args:
            max_bytes: Limit for all uploads together.
            on_removed: Tells all front ends of a removal.
            clock: Returns the seconds since 1970-01-01 UTC.
        """
        self._on_removed = on_removed
        self._clock = clock
        self._uploads = FairLru[str, _Stored](max_bytes=max_bytes, owner=_tenant_of, clock=clock)
        self._senders: dict[str, int] = {}
        """Uploads that still arrive, and the front ends that send them."""

    @property
    def num_bytes(self) -> int:
        """Size of all uploads, with those that still arrive."""
        return self._uploads.num_bytes

    def handle(self, front_end: int, call: UploadCall) -> UploadReply:
        """Answers a call of a front end."""
        match call:
            case BeginUpload():
                return UploadHeader(header=self._begin(front_end, call))
            case AppendUpload(key=key, data=data):
                return UploadExists(exists=self._append(key, data))
            case FindUpload(key=key):
                stored = self._find(key)
                return UploadHeader(header=None if stored is None else stored.header)
            case ReadUpload(key=key, index=index):
                stored = self._find(key)
                return UploadChunk(data=None if stored is None or index >= len(stored.chunks) else stored.chunks[index])
            case RemoveUpload(key=key, announcement=announcement):
                return UploadExists(exists=self._remove(key, announcement))

    def lose(self, front_end: int) -> None:
        """A front end is gone: what it was sending stays incomplete and is removed."""
        for key in [key for key, sender in self._senders.items() if sender == front_end]:
            self._drop(key)

    def purge(self, prefix: str) -> None:
        """Removes a tenant's uploads. `prefix` begins its namespaces: its 32 hexadecimal digits and a dot."""
        begins = _KEYS.of_tenant(Area.UPLOADS, prefix)
        self._uploads.drop_where(lambda key: key.startswith(begins))

    def _begin(self, front_end: int, call: BeginUpload) -> Header | None:
        self._uploads.drop_expired()
        header = Header(digest=call.digest, num_bytes=call.num_bytes, expires=self._clock() + call.seconds, note=b"")
        fits = self._uploads.put(
            call.key,
            _Stored(header=header),
            num_bytes=call.num_bytes + OVERHEAD_BYTES,
            seconds=call.seconds,
            max_own_bytes=float("inf") if call.max_tenant_bytes is None else call.max_tenant_bytes,
        )
        if not fits:
            return None
        if call.num_bytes:
            self._senders[call.key] = front_end
        return header

    def _append(self, key: str, data: bytes) -> bool:
        stored = self._uploads.get(key)
        if stored is None:
            self._senders.pop(key, None)
            return False
        stored.chunks.append(data)
        if len(stored.chunks) * CHUNK_BYTES >= stored.header.num_bytes:
            self._senders.pop(key, None)
        return True

    def _find(self, key: str) -> _Stored | None:
        """Returns a complete upload and marks it as recently used."""
        return None if key in self._senders else self._uploads.get(key)

    def _remove(self, key: str, announcement: str) -> bool:
        existed = self._find(key) is not None
        self._drop(key)
        if announcement:
            self._on_removed(UploadRemoved(announcement=announcement))
        return existed

    def _drop(self, key: str) -> None:
        self._senders.pop(key, None)
        self._uploads.drop(key)


class OwnedUploads:
    """A front end's access to the supervisor's uploads: a `ValueStore` for the area of uploads.

    Methods raise StoreUnavailableError if the supervisor is gone. They compare no digests: what the supervisor has
    came from front ends, through sockets that no other program can open.
    """

    def __init__(self, supervisor: Peer[Any]) -> None:
        self.keys = _KEYS
        self._supervisor = supervisor
        self._on_removal: list[Callable[[str], None]] = []
        self._withdrawals = set[asyncio.Task[None]]()

    def on_removal(self, listener: Callable[[str], None]) -> None:
        """Calls `listener` with what front ends announce that they removed."""
        self._on_removal.append(listener)

    def hear(self, removed: UploadRemoved) -> None:
        """Takes the supervisor's notice of a removal."""
        for listener in self._on_removal:
            listener(removed.announcement)

    async def put(
        self,
        area: Area,
        key: str,
        data: bytes | memoryview,
        *,
        digest: bytes,
        seconds: float,
        max_tenant_bytes: int | None = None,
    ) -> Header | None:
        """Opens an upload; see `ValueStore`. One that is evicted while it is sent raises StoreUnavailableError."""
        del area  # as in all methods: there is one
        view = memoryview(data).cast("B")
        begin = BeginUpload(
            key=key, digest=digest, num_bytes=len(view), seconds=seconds, max_tenant_bytes=max_tenant_bytes
        )
        try:
            header = (await self._call(begin, UploadHeader)).header
            if header is not None:
                for start in range(0, len(view), CHUNK_BYTES):
                    await self._append(key, view[start : start + CHUNK_BYTES])
        except BaseException:
            self._withdraw(key)
            raise
        return header

    async def find(self, area: Area, key: str) -> Header | None:
        """Returns an upload's header and marks the upload as recently used."""
        del area
        return (await self._call(FindUpload(key=key), UploadHeader)).header

    async def read(self, area: Area, key: str, header: Header) -> bytes | None:
        """Returns an upload's bytes; None if the supervisor no longer has it."""
        del area
        chunks: list[bytes] = []
        for index in range(-(-header.num_bytes // CHUNK_BYTES)):
            chunk = (await self._call(ReadUpload(key=key, index=index), UploadChunk)).data
            if chunk is None:
                return None
            chunks.append(chunk)
        return chunks[0] if len(chunks) == 1 else await asyncio.to_thread(b"".join, chunks)

    async def remove(self, area: Area, key: str, *, announcement: str) -> bool:
        """Removes an upload and announces it to all front ends. Returns whether it existed."""
        del area
        return (await self._call(RemoveUpload(key=key, announcement=announcement), UploadExists)).exists

    async def _append(self, key: str, chunk: memoryview) -> None:
        if not (await self._call(AppendUpload(key=key, data=bytes(chunk)), UploadExists)).exists:
            raise StoreUnavailableError("the upload was evicted before it was complete")

    def _withdraw(self, key: str) -> None:
        """Removes an upload that stays incomplete, in the background: its request may be cancelled."""

        async def remove() -> None:
            with suppress(StoreUnavailableError):
                await self._call(RemoveUpload(key=key, announcement=""), UploadExists)

        task = asyncio.create_task(remove())
        self._withdrawals.add(task)
        task.add_done_callback(self._withdrawals.discard)

    async def _call(self, message: UploadCall, expected: type[ReplyT]) -> ReplyT:
        try:
            return await self._supervisor.call(message, expected)
        except PeerGoneError:
            raise StoreUnavailableError("the supervisor has ended") from None


def _tenant_of(key: str) -> str:
    """Returns what the keys of one tenant's uploads begin with."""
    return key.rpartition(":")[0]
