"""Media that all replicas share, in Redis: values with a header, a budget per area, and a lifetime.

A value is a Redis hash: the field `header` describes it, and the fields 0, 1, … are its chunks, so that no command
moves more than `CHUNK_BYTES`. Readers see a value only once it is complete, and check its size and SHA-256. Independent
of what values mean.
"""

import asyncio
import hashlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import msgspec

from glimpse.media.shared.address import StoreAddress
from glimpse.media.shared.keys import Area, StoreKeys
from glimpse.media.shared.link import COMMAND_SECONDS, PROBE_SECONDS, Client, RedisLink
from glimpse.media.shared.script import Script, stage
from glimpse.media.shared.values import (
    CHUNK_BYTES,
    OVERHEAD_BYTES,
    Header,
    Outcome,
    ReferenceMissingError,
    StoreUnavailableError,
)

ResultT = TypeVar("ResultT")

_OVERLAP_MICROSECONDS = 60_000_000
"""A replica that takes a failed Redis' place may lack what was announced last, and announce at those times again."""
_REMOVAL_MILLISECONDS = 3_600_000
"""How long replicas that were disconnected can learn of a removal."""
_PURGE_MILLISECONDS = 30 * 24 * 3_600_000
"""How long they can learn of a purge."""
_LISTED_AT_ONCE = 500
"""Headers that Redis returns at once: for about a millisecond it does nothing else."""
_MUST_REMOVE_MORE = -2
"""What commit.lua returns after it has removed as many values as Redis can remove without keeping others waiting."""
_REFERENCE_MISSING = -3

_logger = logging.getLogger(__name__)


class SharedStore:
    """Values in one Redis, for the tasks of one event loop.

    Methods raise StoreUnavailableError if Redis cannot be reached or refuses a command.
    """

    def __init__(
        self,
        address: StoreAddress,
        *,
        prefix: str,
        budgets: Mapping[Area, int],
        observe: Callable[[Outcome], None] = lambda _: None,
        on_change: Callable[[bool], None] = lambda _: None,
        command_seconds: float = COMMAND_SECONDS,
    ) -> None:
        """
        Args:
            prefix: Begins all keys. Servers that share media have the same.
            budgets: Limit in bytes for each area, of all servers together.
            on_change: Told whether Redis is available, whenever that changes.
        """
        self.keys = StoreKeys(prefix)
        self._budgets = budgets
        self.observe = observe
        """Called with the outcome of each operation."""
        self._on_change = on_change
        self._link = RedisLink(address, probe=self._probe, on_change=self._changed, command_seconds=command_seconds)
        self._commit, self._find, self._list, self._remove, self._next_time = (
            Script("values", name) for name in ("commit", "find", "list", "remove", "time")
        )
        self._latest = 0
        self._removals, self._purges = Announcements(self.keys.removals), Announcements(self.keys.purges)
        self._on_removal: list[Callable[[str], None]] = []
        self._on_purge: list[Callable[[str, str], None]] = []
        self._purged: dict[str, int] = {}
        """When tenants were last purged, by what their namespaces begin with."""
        self._on_reconnect: list[Callable[[], Awaitable[None]]] = []
        self._restoring: asyncio.Task[None] | None = None

    @property
    def is_available(self) -> bool:
        """Whether Redis answered lately."""
        return self._link.is_available

    def on_removal(self, listener: Callable[[str], None]) -> None:
        """Calls `listener` with what replicas announce that they removed, within about a second of it."""
        self._on_removal.append(listener)

    def on_purge(self, listener: Callable[[str, str], None]) -> None:
        """Calls `listener` for each purge of a tenant, within about a second.

        It gets what the tenant's namespaces begin with, and the purge's name, which all replicas know it by. A replica
        that was disconnected hears of it when it is connected again, and one that starts hears of all.
        """
        self._on_purge.append(listener)

    def on_reconnect(self, restore: Callable[[], Awaitable[None]]) -> None:
        """Runs `restore` whenever Redis is available again, which may have lost what it had."""
        self._on_reconnect.append(restore)

    def note_time(self, microseconds: int) -> None:
        """Notes a time that the store told another server. Later ones are later also if Redis loses its clock."""
        self._latest = max(self._latest, microseconds)

    async def time(self) -> int:
        """Returns the store's time in microseconds, which rises with each call of any server."""
        self.note_time(await self._run(self._next_time, [self.keys.clock], [self._latest]))
        return self._latest

    async def start(self) -> None:
        """Connects, and keeps connecting in the background. Returns after the first attempt, even if it failed."""
        await self._link.start()

    async def close(self) -> None:
        """Ends all connections. Idempotent."""
        if self._restoring is not None:
            self._restoring.cancel()
            await asyncio.gather(self._restoring, return_exceptions=True)
        await self._link.close()

    async def put(
        self,
        area: Area,
        key: str,
        data: bytes | memoryview,
        *,
        digest: bytes,
        seconds: float,
        note: bytes = b"",
        order: int = 0,
        max_tenant_bytes: int | None = None,
        refers_to: Sequence[str] = (),
    ) -> Header | None:
        """Stores a value, replacing one of the same key. Returns its header; None if it is not stored.

        Where there is no room, the least recently used values leave: of its tenant if that exceeds its own limit, else
        of the tenant that has most in the area.

        Args:
            area: Whose budget counts.
            data: The bytes; may be empty.
            digest: SHA-256 of `data`.
            seconds: Lifetime, at least a millisecond.
            order: No value of the same key with a higher one is replaced. 0: any is replaced.
            max_tenant_bytes: Limit on what its tenant has in the area; None: the area's.
            refers_to: Keys of values of the same tenant and area. They leave with the last value that refers to them,
                and for lack of room not before.

        Raises:
            ReferenceMissingError: one of these values is not there.
        """
        view = memoryview(data).cast("B")
        size = len(view) + len(note) + OVERHEAD_BYTES
        limit = self._budgets[area]
        own_limit = limit if max_tenant_bytes is None else max_tenant_bytes
        header = Header(digest=digest, num_bytes=len(view), expires=time.time() + seconds, note=note)
        is_stored = size <= min(limit, own_limit)
        if is_stored:
            staged = self.keys.staged(secrets.token_hex(16))
            for index, start in enumerate(range(0, len(view), CHUNK_BYTES)):
                chunk = view[start : start + CHUNK_BYTES]
                await self._call(partial(stage, staged=staged, index=index, chunk=chunk))
            encoded = msgspec.msgpack.encode(header)
            arguments = [encoded, size, max(int(seconds * 1000), 1), limit, own_limit, int(len(view) > 0), order]
            keys, outcome = [staged, key, *self.keys.indexes(area), *refers_to], _MUST_REMOVE_MORE
            while outcome == _MUST_REMOVE_MORE:
                outcome = await self._run(self._commit, keys, arguments)
            if outcome == _REFERENCE_MISSING:
                raise ReferenceMissingError
            is_stored = outcome == 1
        self.observe(Outcome.STORED if is_stored else Outcome.SKIPPED)
        return header if is_stored else None

    async def find(self, area: Area, key: str, *, min_seconds: float = 0) -> Header | None:
        """Returns a value's header and marks the value as recently used. It then lives for `min_seconds` at least."""
        found = await self._run(self._find, [key, *self.keys.indexes(area)], [int(min_seconds * 1000)])
        if found is None:
            self.observe(Outcome.MISS)
            return None
        try:
            header = msgspec.msgpack.decode(found, type=Header)
        except msgspec.MsgspecError:
            await self.discard(area, key)
            return None
        self.observe(Outcome.HIT)
        return header

    async def list_newest(self, area: Area, namespace: str, most: int) -> dict[str, Header]:
        """Returns the headers of a tenant's values by their keys: of the `most` that were used last.

        They are of all namespaces of the tenant that `namespace` begins with.
        """
        index, headers = self.keys.used_by_tenant(area, namespace), dict[str, Header]()
        for start in range(0, most, _LISTED_AT_ONCE):
            last = min(start + _LISTED_AT_ONCE, most) - 1
            found = await self._run(self._list, [index], [start, last])
            for key, encoded in zip(found[1::2], found[2::2], strict=True):
                with suppress(msgspec.MsgspecError):  # damaged: whoever looks for it removes it
                    headers[key.decode()] = msgspec.msgpack.decode(encoded, type=Header)
            if found[0] <= last - start:
                break
        return headers

    async def read(self, area: Area, key: str, header: Header) -> bytes | None:
        """Returns a value's bytes; None if it has left the store, or differs from its header, which removes it.

        The caller has checked that it has room for `header.num_bytes`, twice for a moment.
        """
        chunks: list[bytes] = []
        for start in range(0, header.num_bytes, CHUNK_BYTES):
            chunk = await self._chunk(key, len(chunks))
            if chunk is None:
                return None
            chunks.append(chunk)
            if len(chunk) != min(header.num_bytes - start, CHUNK_BYTES):
                break
        data, digest = await asyncio.to_thread(_join, chunks)
        if digest != header.digest:
            await self.discard(area, key)
            return None
        return data

    async def discard(self, area: Area, key: str) -> None:
        """Removes a value that is damaged."""
        _logger.warning("a value of the media store differs from its header and was removed")
        self.observe(Outcome.DAMAGED)
        await self._drop(area, key, "")

    async def remove(self, area: Area, key: str, *, announcement: str) -> bool:
        """Removes a value and announces it to all replicas. Returns whether it existed."""
        existed = await self._drop(area, key, announcement)
        self.observe(Outcome.REMOVED if existed else Outcome.MISS)
        return existed

    async def purge(self, prefix: str) -> None:
        """Removes all values of a tenant, also from the memory of all replicas.

        When this returns, those that are connected have heard of it.

        Args:
            prefix: Begins the tenant's namespaces: its 32 hexadecimal digits and a dot.

        Raises:
            ValueError: `prefix` is no tenant's.
        """
        nothing = self.keys.of_tenant(Area.MEDIA, prefix)
        if nothing == self.keys.of_tenant(Area.MEDIA, ""):
            raise ValueError("expected a prefix of 32 hexadecimal digits and a dot")
        keys = [nothing, *self.keys.indexes(Area.MEDIA), self.keys.purges, self.keys.clock]
        await self._run(self._remove, keys, [prefix, _PURGE_MILLISECONDS, 1, self._latest])
        for pause_seconds in (0, 2 * PROBE_SECONDS):
            # The second time finds what replicas wrote that had not heard of the purge yet.
            await asyncio.sleep(pause_seconds)
            for area in Area:
                await self._drop_all(area, self.keys.used_by_tenant(area, prefix))

    async def _drop_all(self, area: Area, index: str) -> None:
        cursor = 0
        while True:
            cursor, found = await self._scan(index, cursor)
            for key in found:
                await self._drop(area, key, "")
            if not cursor:
                return

    async def _scan(self, index: str, cursor: int) -> tuple[int, list[str]]:
        """Returns where to go on, 0 at the end, and some members of an index."""
        found: Any = await self._call(lambda client: client.zscan(index, cursor, count=1000))
        following, members = found
        return int(following), [member.decode() for member, _ in members]

    async def _drop(self, area: Area, key: str, announcement: str) -> bool:
        keys = [key, *self.keys.indexes(area), self.keys.removals, self.keys.clock]
        return await self._run(self._remove, keys, [announcement, _REMOVAL_MILLISECONDS, 0, self._latest]) == 1

    async def _run(self, script: Script, keys: Sequence[str], arguments: Sequence[str | bytes | int]) -> Any:
        return await self._call(lambda client: script.run(client, keys, arguments))

    async def _call(self, command: Callable[[Client], Awaitable[ResultT]]) -> ResultT:
        try:
            return await self._link.run(command)
        except StoreUnavailableError:
            self.observe(Outcome.FAILED)
            raise

    async def _chunk(self, key: str, index: int) -> bytes | None:
        return await self._call(lambda client: client.execute_command("HGET", key, index))

    async def _probe(self, client: Client) -> None:
        """Asks for purges and removals, which also shows whether Redis answers; and whether it takes writes."""
        await client.delete(self.keys.probe)  # which a replica refuses
        for prefix, at in (await self._purges.read_new(client)).items():
            if at > self._purged.get(prefix, 0):  # a Redis that took another's place may know an earlier one
                self._purged[prefix] = at
                for on_purge in self._on_purge:
                    on_purge(prefix, str(at))
        for announcement in await self._removals.read_new(client):
            for on_removal in self._on_removal:
                on_removal(announcement)
        self.note_time(max(self._purges.last, self._removals.last))

    def _changed(self, is_available: bool) -> None:
        self._on_change(is_available)
        if not is_available:
            self._purges.rewind()
            self._removals.rewind()
        if is_available and (self._restoring is None or self._restoring.done()):
            self._restoring = asyncio.create_task(self._restore())

    async def _restore(self) -> None:
        with suppress(StoreUnavailableError):  # once it is available again, this starts over
            await self.time()  # first of all, tells a Redis without its clock how late it is
            for restore in self._on_reconnect:
                await restore()


def _join(chunks: Sequence[bytes]) -> tuple[bytes, bytes]:
    data = b"".join(chunks)
    return data, hashlib.sha256(data).digest()


class Announcements:
    """The announcements of one sorted set that this replica has not read yet."""

    def __init__(self, key: str) -> None:
        """`key`: the set's."""
        self._key = key
        self.last = 0
        """The store's time of the latest that was read."""
        self._from = 0
        """What is announced at this time or later may be unread."""
        self._read: dict[bytes, float] = {}
        """Announcements read last, with their times."""

    async def read_new(self, client: Client) -> dict[str, int]:
        """Returns what was announced since the last time, each announcement once, with its time."""
        found: Any = await client.zrangebyscore(self._key, self._from, "+inf", withscores=True)
        new = {announcement: time for announcement, time in found if self._read.get(announcement) != time}
        self.last = max([self.last, *map(int, new.values())])
        self._from = self.last
        if new:
            recent = self.last - _OVERLAP_MICROSECONDS
            self._read = {each: time for each, time in (self._read | new).items() if time >= recent}
        return {announcement.decode(): int(time) for announcement, time in new.items()}

    def rewind(self) -> None:
        """Looks for unread announcements of the last minute: Redis was away and may have lost what it had last."""
        self._from = self.last - _OVERLAP_MICROSECONDS
