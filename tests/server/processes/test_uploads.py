"""Uploads over several front ends: the supervisor's uploads, and front ends that ask for them over real sockets."""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from hashlib import sha256

import msgspec
import pytest

from glimpse.frames import Frames
from glimpse.media.cache.media_file import MediaFile
from glimpse.media.cache.memory_budget import MemoryBudget
from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.shared.keys import Area
from glimpse.media.shared.value_store import ValueStore
from glimpse.media.shared.values import CHUNK_BYTES, OVERHEAD_BYTES, StoreUnavailableError
from glimpse.media.sources.uploads import Uploads
from glimpse.server.processes.messages import (
    AppendUpload,
    BeginUpload,
    FromFrontEnd,
    ReadUpload,
    ToFrontEnd,
    UploadCall,
    UploadRemoved,
)
from glimpse.server.processes.peer import Peer
from glimpse.server.processes.uploads import OwnedUploads, UploadOwner
from tests.engine.processes import until
from tests.media.caching import Clock

DATA = b"example image"
LARGE = bytes(range(256)) * 10_000
"""Three chunks, the last one shorter."""
MAX_BYTES = 8 << 20
MAX_COPIED_BYTES = 4 << 20
ACME, OTHER = (f"{digit * 32}.salt" for digit in "ab")
"""Cache namespaces of two tenants."""
FROM = Frames[FromFrontEnd](FromFrontEnd)
TO = Frames[ToFrontEnd](ToFrontEnd)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontEnd:
    """One of a server."""

    uploads: Uploads
    store: ValueStore
    memory_budget: MemoryBudget

    async def upload(
        self, data: bytes, namespace: str = "", *, most: int | None = None, seconds: float | None = None
    ) -> str:
        file = MediaFile(digest=sha256(data).digest(), data=data)
        kept = await self.uploads.keep(namespace, file, ttl_seconds=seconds, max_tenant_bytes=most)
        return kept.handle

    async def data(self, handle: str, namespace: str = "") -> bytes:
        file = await self.uploads.file(namespace, handle, max_bytes=MAX_BYTES, seconds=30)
        assert file.digest == sha256(file.data).digest()
        return file.data

    async def are_stored(self, namespace: str, handles: Sequence[str]) -> list[bool]:
        return [await self.uploads.find(namespace, handle) is not None for handle in handles]


@dataclass(slots=True)
class Supervisor:
    """The owner of uploads, and what front ends ask of it."""

    max_bytes: int = MAX_BYTES
    clock: Clock = field(default_factory=Clock)
    calls: list[UploadCall] = field(default_factory=list[UploadCall])
    may_append: asyncio.Event = field(default_factory=asyncio.Event)
    """Chunks of uploads wait for it."""
    may_read: asyncio.Event = field(default_factory=asyncio.Event)
    """Replies with chunks wait for it."""
    asked: asyncio.Condition = field(default_factory=asyncio.Condition)
    peers: list[Peer[FromFrontEnd]] = field(default_factory=list[Peer[FromFrontEnd]])
    owner: UploadOwner = field(init=False)

    def __post_init__(self) -> None:
        self.may_append.set()
        self.may_read.set()
        self.owner = UploadOwner(max_bytes=self.max_bytes, on_removed=self._tell_all, clock=self.clock)

    async def connect(self, stack: AsyncExitStack) -> FrontEnd:
        """Adds a front end."""
        number = len(self.peers)
        near, far = socket.socketpair()
        here = await Peer.connect(near, FROM, answer=lambda each: self._answer(number, each), notice=_nothing)
        there = await Peer.connect(far, TO, answer=_refuse, notice=lambda each: hear(each))
        for peer in (here, there):
            task = asyncio.create_task(peer.serve())
            stack.push_async_callback(peer.close)
            stack.push_async_callback(_end, task)
        self.peers.append(here)
        owned, memory_budget = OwnedUploads(there), MemoryBudget()

        def hear(message: ToFrontEnd) -> None:
            assert isinstance(message, UploadRemoved)
            owned.hear(message)

        uploads = Uploads(
            max_bytes=self.max_bytes,
            ttl_seconds=60,
            memory_budget=memory_budget,
            shared=owned,
            max_copied_bytes=MAX_COPIED_BYTES,
            clock=self.clock,
        )
        return FrontEnd(uploads=uploads, store=owned, memory_budget=memory_budget)

    async def until_asked(self, kind: type[UploadCall], count: int = 1) -> None:
        """Waits for the call number `count` of a kind."""
        async with asyncio.timeout(30), self.asked:
            await self.asked.wait_for(lambda: self.count(kind) >= count)

    def count(self, kind: type[UploadCall]) -> int:
        return sum(isinstance(call, kind) for call in self.calls)

    async def _answer(self, number: int, message: FromFrontEnd) -> msgspec.Struct:
        assert isinstance(message, UploadCall)
        async with self.asked:
            self.calls.append(message)
            self.asked.notify_all()
        if isinstance(message, AppendUpload):
            assert len(message.data) <= CHUNK_BYTES
            await self.may_append.wait()
        reply = self.owner.handle(number, message)
        if isinstance(message, ReadUpload):
            await self.may_read.wait()
        return reply

    def _tell_all(self, removed: UploadRemoved) -> None:
        for peer in self.peers:
            peer.tell(removed)


def _nothing(message: FromFrontEnd) -> None:
    raise AssertionError(message)


async def _refuse(message: ToFrontEnd) -> msgspec.Struct:
    raise AssertionError(message)


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait([task])


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def supervisor() -> Supervisor:
    return Supervisor()


@pytest.fixture
async def one(supervisor: Supervisor, stack: AsyncExitStack) -> FrontEnd:
    return await supervisor.connect(stack)


@pytest.fixture
async def other(supervisor: Supervisor, stack: AsyncExitStack) -> FrontEnd:
    return await supervisor.connect(stack)


async def refusal(front_end: FrontEnd, handle: str, namespace: str = "") -> MediaErrorCode:
    with pytest.raises(MediaError) as caught:
        await front_end.data(handle, namespace)
    return caught.value.code


async def until_empty(uploads: Uploads | UploadOwner) -> None:
    await until(lambda: uploads.num_bytes == 0)


@pytest.mark.parametrize("data", [b"x", DATA, bytes(CHUNK_BYTES), LARGE])
async def test_upload_to_one_front_end_is_read_once_by_another(
    one: FrontEnd, other: FrontEnd, supervisor: Supervisor, data: bytes
) -> None:
    handle = await one.upload(data)
    assert await other.uploads.find("", handle) == await one.uploads.find("", handle)
    assert [await each.data(handle) for each in (one, other, other)] == [data] * 3
    assert supervisor.count(ReadUpload) == -(-len(data) // CHUNK_BYTES)
    assert supervisor.owner.num_bytes == len(data) + OVERHEAD_BYTES


async def test_concurrent_requests_read_an_upload_once(one: FrontEnd, other: FrontEnd, supervisor: Supervisor) -> None:
    handle = await one.upload(LARGE)
    assert await asyncio.gather(*(other.data(handle) for _ in range(8))) == [LARGE] * 8
    assert supervisor.count(ReadUpload) == 3
    assert other.memory_budget.num_bytes == 0


async def test_upload_too_large_for_a_copy_is_read_by_each_request(
    one: FrontEnd, other: FrontEnd, supervisor: Supervisor
) -> None:
    data = bytes(MAX_COPIED_BYTES)
    handle = await one.upload(data)
    for front_end in (one, other, other):
        assert await front_end.data(handle) == data
        assert front_end.uploads.num_bytes == 0
    assert supervisor.count(ReadUpload) == 3 * 4


async def test_removed_upload_is_gone_everywhere(one: FrontEnd, other: FrontEnd, supervisor: Supervisor) -> None:
    handle, left = await one.upload(DATA), await one.upload(DATA)
    await other.data(handle)
    assert await other.uploads.remove("", handle)
    assert not await one.uploads.remove("", handle)
    for front_end in (one, other):
        assert await refusal(front_end, handle) is MediaErrorCode.NOT_CACHED
    assert supervisor.owner.num_bytes == len(DATA) + OVERHEAD_BYTES
    assert await other.data(left) == DATA


async def test_copies_of_a_removed_upload_leave_memory_unasked(one: FrontEnd, other: FrontEnd) -> None:
    handle = await one.upload(DATA)
    await other.data(handle)
    assert await one.uploads.remove("", handle)
    await until_empty(other.uploads)
    handle = await other.upload(DATA)
    assert await one.uploads.remove("", handle)
    await until_empty(other.uploads)


async def test_upload_that_is_removed_while_it_is_read_is_not_copied(
    one: FrontEnd, other: FrontEnd, supervisor: Supervisor
) -> None:
    handle = await one.upload(DATA)
    supervisor.may_read.clear()
    reading = asyncio.create_task(other.data(handle))
    await supervisor.until_asked(ReadUpload)
    assert await other.uploads.remove("", handle)
    supervisor.may_read.set()
    assert await reading == DATA, "the request began before"
    assert other.uploads.num_bytes == 0


async def test_upload_that_is_evicted_while_it_is_read_is_missing(
    one: FrontEnd, other: FrontEnd, supervisor: Supervisor
) -> None:
    handle = await one.upload(LARGE)
    supervisor.may_read.clear()
    reading = asyncio.create_task(refusal(other, handle))
    await supervisor.until_asked(ReadUpload)
    await one.upload(bytes(MAX_BYTES - OVERHEAD_BYTES))
    supervisor.may_read.set()
    assert await reading is MediaErrorCode.NOT_CACHED
    assert other.uploads.num_bytes == 0


async def test_another_namespace_sees_nothing(one: FrontEnd, other: FrontEnd) -> None:
    handle = await one.upload(DATA, ACME)
    for namespace in ("", "salt", f"{'a' * 32}.", f"{ACME}2", OTHER):
        assert await refusal(other, handle, namespace) is MediaErrorCode.NOT_CACHED
        assert not await other.uploads.remove(namespace, handle)
    assert await other.data(handle, ACME) == DATA


async def test_uploads_expire_everywhere_at_once(one: FrontEnd, other: FrontEnd, supervisor: Supervisor) -> None:
    short, long = [await one.upload(DATA, seconds=seconds) for seconds in (10, 1000)]
    found = [await other.uploads.find("", handle) for handle in (short, long)]
    now = supervisor.clock.now
    assert [None if each is None else each.expires for each in found] == [now + 10, now + 60]
    assert await other.data(short) == DATA
    supervisor.clock.now += 10
    for front_end in (one, other):
        assert await front_end.are_stored("", [short, long]) == [False, True]
        assert await refusal(front_end, short) is MediaErrorCode.NOT_CACHED
    supervisor.clock.now += 50
    await one.upload(DATA)
    assert supervisor.owner.num_bytes == len(DATA) + OVERHEAD_BYTES


async def test_new_uploads_evict_the_least_recently_used_of_all_front_ends(one: FrontEnd, other: FrontEnd) -> None:
    quarter = bytes(MAX_BYTES // 4 - OVERHEAD_BYTES)
    handles = [await front_end.upload(quarter) for front_end in (one, other, one, other)]
    await other.data(handles[0])
    handles.append(await one.upload(DATA))
    for front_end in (one, other):
        assert await front_end.are_stored("", handles) == [True, False, True, True, True]


async def test_tenant_over_its_limit_loses_its_own_oldest_uploads(one: FrontEnd, other: FrontEnd) -> None:
    others = [await one.upload(bytes(1000), OTHER) for _ in range(2)]
    own = [await each.upload(bytes(1000), ACME, most=4000) for each in (one, other, one)]
    assert await other.are_stored(ACME, own) == [False, True, True]
    assert await one.are_stored(OTHER, others) == [True, True]


async def test_flood_of_one_tenant_evicts_no_upload_of_another(one: FrontEnd, other: FrontEnd) -> None:
    handles = [await one.upload(DATA, OTHER) for _ in range(2)]
    for index in range(20):
        await (one, other)[index % 2].upload(bytes(1 << 20), f"{'a' * 32}.{index}")
    for front_end in (one, other):
        assert await front_end.are_stored(OTHER, handles) == [True, True]


async def test_upload_over_a_limit_is_too_large(one: FrontEnd, supervisor: Supervisor) -> None:
    for data, most in ((bytes(MAX_BYTES - OVERHEAD_BYTES + 1), None), (bytes(1001), 1000 + OVERHEAD_BYTES)):
        with pytest.raises(MediaError) as caught:
            await one.upload(data, ACME, most=most)
        assert caught.value.code is MediaErrorCode.TOO_LARGE
    assert await one.upload(bytes(MAX_BYTES - OVERHEAD_BYTES), ACME)
    assert await one.upload(bytes(1000), ACME, most=1000 + OVERHEAD_BYTES)
    assert supervisor.owner.num_bytes == 1000 + OVERHEAD_BYTES


async def test_purge_removes_all_of_one_tenant(one: FrontEnd, other: FrontEnd, supervisor: Supervisor) -> None:
    handle = await one.upload(DATA, ACME)
    kept = [(namespace, await one.upload(DATA, namespace)) for namespace in (OTHER, "", "a" * 31)]
    supervisor.owner.purge(f"{'a' * 32}.")
    for front_end in (one, other):
        assert await refusal(front_end, handle, ACME) is MediaErrorCode.NOT_CACHED
        for namespace, each in kept:
            assert await front_end.data(each, namespace) == DATA


async def test_upload_is_invisible_until_it_is_complete(one: FrontEnd, other: FrontEnd, supervisor: Supervisor) -> None:
    supervisor.may_append.clear()
    key = other.store.keys.value(Area.UPLOADS, "", "upload", "x")
    writing = asyncio.create_task(one.store.put(Area.UPLOADS, key, LARGE, digest=bytes(32), seconds=60))
    await supervisor.until_asked(AppendUpload)
    assert await other.store.find(Area.UPLOADS, key) is None
    assert supervisor.owner.num_bytes == len(LARGE) + OVERHEAD_BYTES, "its room is taken already"
    supervisor.may_append.set()
    header = await writing
    assert header is not None
    assert await other.store.find(Area.UPLOADS, key) == header
    assert await other.store.read(Area.UPLOADS, key, header) == LARGE


async def test_upload_of_a_front_end_that_is_gone_leaves_nothing(
    one: FrontEnd, other: FrontEnd, supervisor: Supervisor
) -> None:
    handle = await one.upload(DATA)
    supervisor.may_append.clear()
    writing = [asyncio.create_task(each.upload(LARGE)) for each in (one, other)]
    await supervisor.until_asked(AppendUpload, 3)
    supervisor.owner.lose(0)
    assert supervisor.owner.num_bytes == len(LARGE) + len(DATA) + 2 * OVERHEAD_BYTES
    supervisor.may_append.set()
    assert await other.data(await writing[1]) == LARGE
    assert await other.data(handle) == DATA, "it was complete"
    with pytest.raises(MediaError) as caught:
        await writing[0]
    assert caught.value.code is MediaErrorCode.STORE_UNAVAILABLE


@pytest.mark.parametrize("during", [BeginUpload, AppendUpload])
async def test_cancelled_upload_leaves_nothing(one: FrontEnd, supervisor: Supervisor, during: type[UploadCall]) -> None:
    supervisor.may_append.clear()
    writing = asyncio.create_task(one.upload(LARGE))
    await supervisor.until_asked(during)
    writing.cancel()
    await asyncio.wait([writing])
    assert writing.cancelled()
    supervisor.may_append.set()
    await until_empty(supervisor.owner)


async def test_upload_that_is_evicted_while_it_is_sent_can_be_tried_again(
    one: FrontEnd, other: FrontEnd, supervisor: Supervisor
) -> None:
    supervisor.may_append.clear()
    first = asyncio.create_task(one.upload(LARGE))
    await supervisor.until_asked(AppendUpload)
    second = asyncio.create_task(other.upload(bytes(MAX_BYTES - OVERHEAD_BYTES)))
    await supervisor.until_asked(AppendUpload, 2)
    supervisor.may_append.set()
    with pytest.raises(MediaError, match="try again") as caught:
        await first
    assert caught.value.code is MediaErrorCode.STORE_UNAVAILABLE
    assert await one.are_stored("", [await second]) == [True]


async def test_without_a_supervisor_copies_can_be_used(one: FrontEnd, other: FrontEnd, supervisor: Supervisor) -> None:
    handle = await one.upload(DATA)
    for peer in supervisor.peers:
        await peer.close()
    assert await one.data(handle) == DATA
    assert await refusal(other, handle) is MediaErrorCode.STORE_UNAVAILABLE
    for attempt in (one.upload(DATA), one.uploads.remove("", handle)):
        with pytest.raises(MediaError) as caught:
            await attempt
        assert caught.value.code is MediaErrorCode.STORE_UNAVAILABLE
    with pytest.raises(StoreUnavailableError):
        await one.store.find(Area.UPLOADS, "uploads:-:x")
