"""What media caches share with those of other replicas: files, tensors, and what uuids and URLs refer to.

Writing happens in the background, so that no request waits for it. The shared store has a budget as large as that of
one media cache.
"""

import asyncio
import hashlib
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from glimpse.media.cache.media_file import MediaFile, NamedMedia
from glimpse.media.cache.memory_budget import MemoryBudget
from glimpse.media.errors import MediaError
from glimpse.media.shared.keys import Area
from glimpse.media.shared.values import Header, Outcome, StoreUnavailableError

if TYPE_CHECKING:
    from glimpse.media.shared.store import SharedStore

IDLE_SECONDS = 86_400
"""Lifetime of files and uuids in the shared store, since their last use."""
MAX_WRITING_BYTES = 128 << 20
"""Files that wait to be written. Further ones are not shared, so that a slow store takes no memory from requests."""
_CLOSE_SECONDS = 2.0
"""What a server that stops waits for files to be written."""
_TASK_BYTES = 4096
"""Estimated size of a write without its files."""
_EMPTY_DIGEST = b""
"""Digest of values without bytes: what they refer to is in their note."""


class NamedRecord(msgspec.Struct, frozen=True):
    """What a uuid refers to, and since when, as the shared store has it."""

    sent: int
    """When a client last sent media with the uuid, in the store's time. The latest counts."""
    media: NamedMedia


@dataclass(slots=True, kw_only=True)
class LocalName:
    """What a uuid refers to in this process."""

    media: NamedMedia
    received: float = field(default_factory=time.monotonic)
    """When it came, by the clock of this process, which no other one's agrees with."""
    sent: int | None = None
    """Time of sending by the store's clock; None: the store has not been asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Write:
    content: object
    """Equal if the same is written."""
    task: asyncio.Task[None]


class SharedMedia:
    """The media cache's part of the shared store."""

    def __init__(self, store: "SharedStore", memory_budget: MemoryBudget) -> None:
        """`memory_budget` counts files while they are read."""
        self.store = store
        """Closed by `close`."""
        self._memory_budget = memory_budget
        self._write_budget = MemoryBudget(max_bytes=MAX_WRITING_BYTES)
        self._writing: dict[str, _Write] = {}

    async def written(self) -> None:
        """Waits until everything that is being written now is stored or has failed."""
        await asyncio.gather(*(write.task for write in self._writing.values()), return_exceptions=True)

    async def close(self) -> None:
        """Writes what is being written, for a moment, and ends the connections. Idempotent."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self.written()
        await self.store.close()

    async def find_named(self, namespace: str, kind: str, uuid: str) -> NamedRecord | None:
        """Returns what a uuid refers to. Raises StoreUnavailableError."""
        header = await self.store.find(Area.MEDIA, self._named_key(namespace, kind, uuid), min_seconds=IDLE_SECONDS)
        found = None if header is None else _decode_named(header)
        if found is not None:
            self.store.note_time(found.sent)
        return found

    async def sent(self, name: LocalName) -> int:
        """Returns when a uuid was sent, in the store's time. Raises StoreUnavailableError."""
        if name.sent is None:
            now = await self.store.time()
            age = time.monotonic() - name.received
            name.sent = name.sent or now - int(1e6 * age)  # or as another task has learnt meanwhile
        return name.sent

    async def find_url(self, namespace: str, url: str) -> tuple[bytes, float] | None:
        """Returns the hash of a URL's file, and for how many seconds it may be reused. Raises StoreUnavailableError."""
        header = await self.store.find(Area.MEDIA, self._url_key(namespace, url))
        if header is None or (seconds := header.expires - time.time()) <= 0:
            return None
        return header.note, seconds

    async def read_file(self, namespace: str, digest: bytes, max_bytes: int, seconds: float) -> MediaFile | None:
        """Returns a file of at most `max_bytes`. Raises StoreUnavailableError if that takes more than `seconds`."""
        key = self._file_key(namespace, digest)
        try:
            async with asyncio.timeout(seconds):
                header = await self.store.find(Area.MEDIA, key, min_seconds=IDLE_SECONDS)
                if header is None or header.num_bytes > max_bytes:
                    return None
                if header.digest != digest:
                    await self.store.discard(Area.MEDIA, key)
                    return None
                data = await self._read(key, header)
        except TimeoutError:
            raise StoreUnavailableError from None
        return None if data is None else MediaFile(digest=digest, data=data)

    async def find_tensor(self, namespace: str, kind: str, uuid: str) -> Header | None:
        """Returns the header of the tensor that a uuid refers to. Raises StoreUnavailableError."""
        return await self.store.find(Area.MEDIA, self._tensor_key(namespace, kind, uuid), min_seconds=IDLE_SECONDS)

    async def read_tensor(
        self, namespace: str, kind: str, uuid: str, header: Header, max_bytes: int, seconds: float
    ) -> bytes | None:
        """Returns a tensor of at most `max_bytes`. Raises StoreUnavailableError if that takes more than `seconds`."""
        if header.num_bytes > max_bytes:
            return None
        try:
            async with asyncio.timeout(seconds):
                return await self._read(self._tensor_key(namespace, kind, uuid), header)
        except TimeoutError:
            raise StoreUnavailableError from None

    def write_tensor(
        self, namespace: str, kind: str, uuid: str, data: memoryview, *, note: bytes, content: bytes
    ) -> None:
        """Stores in the background the tensor that a uuid refers to.

        Args:
            note: Stored in the header.
            content: Differs if the tensor does.
        """
        key = self._tensor_key(namespace, kind, uuid)

        async def write() -> None:
            digest = (await asyncio.to_thread(hashlib.sha256, data)).digest()
            await self.store.put(Area.MEDIA, key, data, digest=digest, seconds=IDLE_SECONDS, note=note)

        self._write(key, content, write(), len(data))

    def write_named(self, namespace: str, kind: str, uuid: str, name: LocalName, files: Sequence[MediaFile]) -> None:
        """Stores in the background what a uuid refers to, unless the store has something later."""
        key = self._named_key(namespace, kind, uuid)

        async def write() -> None:
            record = NamedRecord(sent=await self.sent(name), media=name.media)
            for file in files:
                await self._write_file(namespace, file)
            note = msgspec.msgpack.encode(record)
            await self.store.put(
                Area.MEDIA, key, b"", digest=_EMPTY_DIGEST, seconds=IDLE_SECONDS, note=note, order=record.sent
            )

        self._write(key, name.media, write(), sum(len(file.data) for file in files))

    def write_url(self, namespace: str, url: str, file: MediaFile, seconds: float) -> None:
        """Stores in the background the file of a URL, which may be reused for `seconds`."""
        key = self._url_key(namespace, url)

        async def write() -> None:
            await self._write_file(namespace, file)
            await self.store.put(Area.MEDIA, key, b"", digest=_EMPTY_DIGEST, seconds=seconds, note=file.digest)

        self._write(key, file.digest, write(), len(file.data))

    async def _read(self, key: str, header: Header) -> bytes | None:
        with self._memory_budget.reservation() as reservation:
            reservation.reserve(2 * max(header.num_bytes, 0))
            return await self.store.read(Area.MEDIA, key, header)

    async def _write_file(self, namespace: str, file: MediaFile) -> None:
        key = self._file_key(namespace, file.digest)
        if await self.store.find(Area.MEDIA, key, min_seconds=IDLE_SECONDS) is None:
            await self.store.put(Area.MEDIA, key, file.data, digest=file.digest, seconds=IDLE_SECONDS)

    def _write(self, key: str, content: object, work: Coroutine[Any, Any, None], num_bytes: int) -> None:
        """Runs `work` in the background. Other content for the key replaces it. Skips it if too much is waiting."""
        running = self._writing.get(key)
        if running is not None and running.content == content:
            work.close()
            return
        if running is not None:
            running.task.cancel()

        async def run() -> None:
            try:
                with self._write_budget.reservation() as reservation:
                    reservation.reserve(num_bytes + _TASK_BYTES)
                    await work
            except MediaError:
                self.store.observe(Outcome.SKIPPED)
            except StoreUnavailableError:
                pass  # the store counts it; what is cached here is written when the store is back
            finally:
                work.close()
                current = self._writing.get(key)
                if current is not None and current.task is asyncio.current_task():
                    del self._writing[key]

        self._writing[key] = _Write(content=content, task=asyncio.create_task(run()))

    def _named_key(self, namespace: str, kind: str, uuid: str) -> str:
        return self.store.keys.value(Area.MEDIA, namespace, f"uuid {kind}", uuid)

    def _tensor_key(self, namespace: str, kind: str, uuid: str) -> str:
        return self.store.keys.value(Area.MEDIA, namespace, f"tensor {kind}", uuid)

    def _url_key(self, namespace: str, url: str) -> str:
        return self.store.keys.value(Area.MEDIA, namespace, "url", url)

    def _file_key(self, namespace: str, digest: bytes) -> str:
        return self.store.keys.value(Area.MEDIA, namespace, "file", digest)


def _decode_named(header: Header) -> NamedRecord | None:
    try:
        return msgspec.msgpack.decode(header.note, type=NamedRecord)
    except msgspec.MsgspecError:
        return None
