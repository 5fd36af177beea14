"""Where batches are kept: what each store of them does, and SQLite, in a file or in memory.

A result is stored once for each line: the first one counts, whoever writes it, and none is taken after the end. So each
request has exactly one answer, however many processes were at it.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from glimpse.media.shared.sqlite_file import SqliteFile, num_used_bytes
from glimpse.server.batches.record import BatchRecord, Kind

CHUNK_BYTES = 1 << 20
"""What is read of a file of requests at once."""
FILE_NAME = "batches.sqlite"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS batches (
    id TEXT PRIMARY KEY, namespace TEXT NOT NULL, created REAL NOT NULL, is_open INTEGER NOT NULL, ends REAL NOT NULL,
    version INTEGER NOT NULL, record BLOB NOT NULL, output INTEGER NOT NULL DEFAULT 0, error INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS of_tenant ON batches (namespace, created);
CREATE TABLE IF NOT EXISTS input (
    id TEXT NOT NULL REFERENCES batches ON DELETE CASCADE, number INTEGER NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (id, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS results (
    id TEXT NOT NULL REFERENCES batches ON DELETE CASCADE, line INTEGER NOT NULL, kind TEXT NOT NULL,
    data BLOB NOT NULL, PRIMARY KEY (id, line)
) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBatch:
    """A batch as it is in the store."""

    record: BatchRecord
    version: int
    """Changes with the record. A change names the version that it was made of."""
    counts: Mapping[Kind, int] = field(default_factory=dict[Kind, int])


class BatchStore(Protocol):
    """Batches, their requests and results. Methods raise StoreUnavailableError if the store does not answer."""

    async def add(self, record: BatchRecord, chunks: Sequence[bytes], *, max_bytes: int) -> bool:
        """Stores a new batch and its file of requests, whole or not at all: False if that exceeds the budget."""
        ...

    async def get(self, batch_id: str) -> StoredBatch | None: ...

    async def change(self, record: BatchRecord, version: int) -> bool:
        """Replaces the record of a batch that still has this version. A batch that has ended loses its requests."""
        ...

    async def of_tenant(self, namespace: str) -> list[StoredBatch]:
        """Returns the batches of a tenant, the latest first."""
        ...

    async def open_ids(self) -> list[str]:
        """Returns the ids of the batches that have not ended, the oldest first."""
        ...

    async def input_chunk(self, batch_id: str, number: int) -> bytes | None:
        """Returns a part of the file of requests; None after the last one."""
        ...

    async def put_result(self, batch_id: str, line: int, kind: Kind, data: bytes, *, max_bytes: int) -> bool | None:
        """Stores the result of a line of an open batch, unless the line has one.

        Returns whether there is room for it in the budget; None: the batch has ended, or is gone.
        """
        ...

    async def finished_lines(self, batch_id: str) -> set[int]:
        """Returns the lines that have results."""
        ...

    async def results(self, batch_id: str, kind: Kind, after: int) -> list[tuple[int, bytes]]:
        """Returns the next results of a file after a line, in the order of the lines, with their lines."""
        ...

    async def drop_results(self, batch_id: str, kind: Kind) -> None:
        """Removes the results of a file."""
        ...

    async def remove_ended(self, now: float) -> None:
        """Removes the batches whose time has come."""
        ...

    async def purge(self, namespace: str) -> None:
        """Removes all batches of a tenant."""
        ...

    async def close(self) -> None:
        """Ends all connections. Idempotent."""
        ...


def encode(record: BatchRecord) -> bytes:
    return msgspec.msgpack.encode(record)


def decode(data: bytes) -> BatchRecord:
    return msgspec.msgpack.decode(data, type=BatchRecord)


def end_of(record: BatchRecord) -> float:
    """Returns when a batch is removed. One that is open is, if nobody ends it for as long as it would be kept."""
    return (record.expires_at if record.is_open else record.ended_at) + record.output_seconds


class SqliteStore:
    """Batches in an SQLite database. Several processes may have the same file."""

    def __init__(self, folder: Path | None) -> None:
        """`folder`: of the file, which is made if it is missing. None: the batches end with this process.

        Raises OSError or sqlite3.Error if the file cannot be used.
        """
        self._file = SqliteFile(None if folder is None else folder / FILE_NAME, _SCHEMA)
        self._run = self._file.run

    async def add(self, record: BatchRecord, chunks: Sequence[bytes], *, max_bytes: int) -> bool:
        def run(database: sqlite3.Connection) -> bool:
            if num_used_bytes(database) + sum(map(len, chunks)) > max_bytes:
                return False
            database.execute(
                "INSERT INTO batches (id, namespace, created, is_open, ends, version, record)"
                " VALUES (?, ?, ?, 1, ?, 1, ?)",
                (record.batch_id, record.namespace, record.created_at, end_of(record), encode(record)),
            )
            rows = ((record.batch_id, number, chunk) for number, chunk in enumerate(chunks))
            database.executemany("INSERT INTO input VALUES (?, ?, ?)", rows)
            return True

        return await self._run(run, added_bytes=sum(map(len, chunks)))

    async def get(self, batch_id: str) -> StoredBatch | None:
        found = await self._run(lambda database: _select(database, "id = ?", batch_id))
        return found[0] if found else None

    async def change(self, record: BatchRecord, version: int) -> bool:
        def run(database: sqlite3.Connection) -> bool:
            values = (encode(record), record.is_open, end_of(record), record.batch_id, version)
            changed = database.execute(
                "UPDATE batches SET record = ?, is_open = ?, ends = ?, version = version + 1"
                " WHERE id = ? AND version = ?",
                values,
            )
            if changed.rowcount and not record.is_open:
                database.execute("DELETE FROM input WHERE id = ?", (record.batch_id,))
            return bool(changed.rowcount)

        return await self._run(run)

    async def of_tenant(self, namespace: str) -> list[StoredBatch]:
        return await self._run(lambda database: _select(database, "namespace = ?", namespace))

    async def open_ids(self) -> list[str]:
        query = "SELECT id FROM batches WHERE is_open ORDER BY created, id"
        return [batch_id for (batch_id,) in await self._run(lambda database: database.execute(query).fetchall())]

    async def input_chunk(self, batch_id: str, number: int) -> bytes | None:
        query = "SELECT data FROM input WHERE id = ? AND number = ?"
        found = await self._run(lambda database: database.execute(query, (batch_id, number)).fetchone())
        return None if found is None else found[0]

    async def put_result(self, batch_id: str, line: int, kind: Kind, data: bytes, *, max_bytes: int) -> bool | None:
        def run(database: sqlite3.Connection) -> bool | None:
            if database.execute("SELECT 1 FROM batches WHERE id = ? AND is_open", (batch_id,)).fetchone() is None:
                return None
            if num_used_bytes(database) + len(data) > max_bytes:
                return False
            values = (batch_id, line, kind, data)
            if database.execute("INSERT OR IGNORE INTO results VALUES (?, ?, ?, ?)", values).rowcount:
                database.execute(f"UPDATE batches SET {kind} = {kind} + 1 WHERE id = ?", (batch_id,))  # noqa: S608 - ours
            return True

        return await self._run(run, added_bytes=len(data))

    async def finished_lines(self, batch_id: str) -> set[int]:
        query = "SELECT line FROM results WHERE id = ?"
        return {line for (line,) in await self._run(lambda database: database.execute(query, (batch_id,)).fetchall())}

    async def results(self, batch_id: str, kind: Kind, after: int) -> list[tuple[int, bytes]]:
        query = "SELECT line, data FROM results WHERE id = ? AND kind = ? AND line > ? ORDER BY line LIMIT 64"
        return await self._run(lambda database: database.execute(query, (batch_id, kind, after)).fetchall())

    async def drop_results(self, batch_id: str, kind: Kind) -> None:
        query = "DELETE FROM results WHERE id = ? AND kind = ?"
        await self._run(lambda database: database.execute(query, (batch_id, kind)))

    async def remove_ended(self, now: float) -> None:
        await self._run(lambda database: database.execute("DELETE FROM batches WHERE ends < ?", (now,)))

    async def purge(self, namespace: str) -> None:
        await self._run(lambda database: database.execute("DELETE FROM batches WHERE namespace = ?", (namespace,)))

    async def close(self) -> None:
        await self._file.close()


def _select(database: sqlite3.Connection, condition: str, value: str) -> list[StoredBatch]:
    query = f"SELECT record, version, output, error FROM batches WHERE {condition} ORDER BY created DESC, id DESC"  # noqa: S608 - ours
    return [
        StoredBatch(record=decode(record), version=version, counts={Kind.OUTPUT: output, Kind.ERROR: error})
        for record, version, output, error in database.execute(query, (value,)).fetchall()
    ]
