"""Batches in the Redis of the media store, for all servers that share it. What each method does: see `BatchStore`."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from glimpse.media.shared.address import StoreAddress
from glimpse.media.shared.link import Client, RedisLink
from glimpse.media.shared.script import Script, stage
from glimpse.media.shared.values import StoreUnavailableError
from glimpse.server.batches.record import BatchRecord, Kind
from glimpse.server.batches.store import StoredBatch, decode, encode, end_of

_LINES_AT_ONCE = 64
"""Results that are read at once: for about a millisecond Redis does nothing else."""


class RedisStore:
    """Batches in one Redis, for the tasks of one event loop. It has a connection of its own."""

    def __init__(self, address: StoreAddress, *, prefix: str) -> None:
        """`address`: where Redis is. `prefix` begins all keys; servers that share batches have the same."""
        self._prefix = f"{prefix}batches:"
        self._script = Script("batches", package=__package__)
        self._link = RedisLink(address, probe=self._probe, on_change=lambda _: None, name="store of batches")
        self._has_started = False

    async def add(self, record: BatchRecord, chunks: Sequence[bytes], *, max_bytes: int) -> bool:
        staged = f"{self._prefix}staged:{secrets.token_hex(16)}"
        for number, chunk in enumerate(chunks):
            await self._run(partial(stage, staged=staged, index=number, chunk=chunk))
        size = sum(map(len, chunks))
        arguments = [record.namespace, record.created_at, end_of(record), encode(record), staged, size, max_bytes]
        outcome = await self._change("add", record.batch_id, *arguments)
        if outcome < 0:
            raise StoreUnavailableError
        return outcome == 1

    async def get(self, batch_id: str) -> StoredBatch | None:
        key = self._key(batch_id)
        values: Any = await self._run(lambda client: client.hmget(key, "record", "version", *Kind))
        record, version, *counts = values
        if record is None:
            return None
        named = {kind: int(count or 0) for kind, count in zip(Kind, counts, strict=True)}
        return StoredBatch(record=decode(record), version=int(version), counts=named)

    async def change(self, record: BatchRecord, version: int) -> bool:
        arguments = [version, encode(record), int(record.is_open), end_of(record)]
        return await self._change("change", record.batch_id, *arguments) == 1

    async def of_tenant(self, namespace: str) -> list[StoredBatch]:
        key = self._key(f"of:{namespace}")
        ids: Any = await self._run(lambda client: client.zrevrange(key, 0, -1))
        found = [await self.get(batch_id.decode()) for batch_id in ids]
        return [each for each in found if each is not None]

    async def open_ids(self) -> list[str]:
        key = self._key("open")
        ids: Any = await self._run(lambda client: client.zrange(key, 0, -1))
        return [batch_id.decode() for batch_id in ids]

    async def input_chunk(self, batch_id: str, number: int) -> bytes | None:
        key = self._key(f"{batch_id}:input")
        return await self._run(lambda client: client.execute_command("HGET", key, number))

    async def put_result(self, batch_id: str, line: int, kind: Kind, data: bytes, *, max_bytes: int) -> bool | None:
        outcome = await self._change("put", batch_id, line, kind.value, data, max_bytes)
        return None if outcome < 0 else outcome == 1

    async def finished_lines(self, batch_id: str) -> set[int]:
        found = set[int]()
        for kind in Kind:
            key = self._key(f"{batch_id}:{kind}")
            lines: Any = await self._run(lambda client, key=key: client.execute_command("HKEYS", key))
            found.update(map(int, lines))
        return found

    async def results(self, batch_id: str, kind: Kind, after: int) -> list[tuple[int, bytes]]:
        batch, results = self._key(batch_id), self._key(f"{batch_id}:{kind}")
        last = int(await self._run(lambda client: client.execute_command("HGET", batch, "last_line")) or 0)
        for start in range(after + 1, last + 1, _LINES_AT_ONCE):
            lines = range(start, min(start + _LINES_AT_ONCE, last + 1))
            found: Any = await self._run(lambda client, lines=lines: client.execute_command("HMGET", results, *lines))
            if any(found):
                return [(line, data) for line, data in zip(lines, found, strict=True) if data is not None]
        return []

    async def drop_results(self, batch_id: str, kind: Kind) -> None:
        await self._change("drop", batch_id, kind.value)

    async def remove_ended(self, now: float) -> None:
        await self._change("remove ended", now)

    async def purge(self, namespace: str) -> None:
        await self._change("purge", namespace)

    async def close(self) -> None:
        await self._link.close()

    async def _change(self, what: str, *arguments: str | bytes | float) -> int:
        encoded = [repr(each) if isinstance(each, float) else each for each in arguments]
        return await self._run(lambda client: self._script.run(client, [self._prefix], [what, *encoded]))

    async def _run(self, command: Callable[[Client], Awaitable[Any]]) -> Any:
        if not self._has_started:
            self._has_started = True
            await self._link.start()
        result = await self._link.run(command)
        if (task := asyncio.current_task()) is not None and task.cancelling():
            # The client may swallow a cancellation that comes in the moment in which a wait of its own ends.
            raise asyncio.CancelledError
        return result

    def _key(self, name: str) -> str:
        return f"{self._prefix}{name}"

    async def _probe(self, client: Client) -> None:
        """Shows whether Redis takes writes."""
        await client.delete(self._key("probe"))
