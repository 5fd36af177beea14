"""Values of one server on disk, so that they outlive it: what `SharedStore` does for several, in an SQLite file.

Values have a header, a budget per area, and a lifetime. Where there is no room, the least recently used leave.
"""

import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from glimpse.media.shared.keys import Area, StoreKeys, tenant_of
from glimpse.media.shared.sqlite_file import SqliteFile
from glimpse.media.shared.values import CHUNK_BYTES, OVERHEAD_BYTES, Header, ReferenceMissingError

_FILE_NAME = "files.sqlite"
_FREE = "NOT EXISTS (SELECT 1 FROM referring WHERE other = stored.key)"
"""Holds for values that none refers to."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS stored (
    key TEXT PRIMARY KEY, area TEXT NOT NULL, tenant TEXT NOT NULL, size INTEGER NOT NULL, used REAL NOT NULL,
    expires REAL NOT NULL, header BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS by_use ON stored (area, tenant, used);
CREATE TABLE IF NOT EXISTS chunks (
    key TEXT NOT NULL REFERENCES stored ON DELETE CASCADE, number INTEGER NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (key, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS referring (
    key TEXT NOT NULL REFERENCES stored ON DELETE CASCADE, other TEXT NOT NULL, PRIMARY KEY (other, key)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_key ON referring (key);
CREATE TRIGGER IF NOT EXISTS unreferred AFTER DELETE ON referring
WHEN NOT EXISTS (SELECT 1 FROM referring WHERE other = OLD.other)
BEGIN
    DELETE FROM stored WHERE key = OLD.other;
END;
"""


class DiskStore:
    """Values in a file of the state folder. Methods raise StoreUnavailableError if it cannot be used."""

    def __init__(self, folder: Path, *, budgets: Mapping[Area, int]) -> None:
        """
        Args:
            folder: Made if it is missing.
            budgets: Limit in bytes of each area.

        Raises:
            OSError or sqlite3.Error: the file cannot be used.
        """
        self.keys = StoreKeys("")
        self._file = SqliteFile(folder / _FILE_NAME, _SCHEMA)
        self._budgets = budgets

    def on_removal(self, listener: Callable[[str], None]) -> None:
        """Does nothing: no other process removes values."""

    async def put(
        self,
        area: Area,
        key: str,
        data: bytes | memoryview,
        *,
        digest: bytes,
        seconds: float,
        note: bytes = b"",
        max_tenant_bytes: int | None = None,
        refers_to: Sequence[str] = (),
    ) -> Header | None:
        """Stores a value, replacing one of the same key. Returns its header; None if it is larger than a limit.

        Raises:
            ReferenceMissingError: a value that it is to refer to is not there.
        """
        view, limit, now = memoryview(data).cast("B"), self._budgets[area], time.time()
        own_limit = limit if max_tenant_bytes is None else min(limit, max_tenant_bytes)
        size, tenant = len(view) + len(note) + OVERHEAD_BYTES, key.split(":")[1]
        header = Header(digest=digest, num_bytes=len(view), expires=now + seconds, note=note)
        if size > own_limit:
            return None

        def make_room(database: sqlite3.Connection) -> bool:
            loser = _loser(database, area, tenant, key, size, limit, own_limit)
            others = f"SELECT key FROM stored WHERE area = ? AND tenant = ? AND key != ? AND {_FREE}"  # noqa: S608
            return loser is not None and _remove_one(database, f"{others} ORDER BY used LIMIT 1", area, loser, key)

        def run(database: sqlite3.Connection) -> None:
            database.execute("DELETE FROM stored WHERE key = ?", (key,))
            while make_room(database):  # another process may have stored a value meanwhile
                pass
            values = (key, area, tenant, size, now, header.expires, msgspec.msgpack.encode(header))
            database.execute("INSERT INTO stored VALUES (?, ?, ?, ?, ?, ?, ?)", values)
            starts = enumerate(range(0, len(view), CHUNK_BYTES))
            chunks = ((key, number, view[start : start + CHUNK_BYTES]) for number, start in starts)
            database.executemany("INSERT INTO chunks VALUES (?, ?, ?)", chunks)
            for other in refers_to:
                update = "UPDATE stored SET expires = MAX(expires, ?) WHERE key = ?"
                if not database.execute(update, (header.expires, other)).rowcount:
                    raise ReferenceMissingError
                database.execute("INSERT INTO referring VALUES (?, ?)", (key, other))

        await self._remove_each("SELECT key FROM stored WHERE expires < ? LIMIT 1", now)
        while await self._file.run(make_room):
            pass
        await self._file.run(run, added_bytes=size)
        return header

    async def find(self, area: Area, key: str, *, min_seconds: float = 0) -> Header | None:
        """Returns a value's header and marks the value as recently used. It then lives for `min_seconds` at least."""
        now = time.time()
        until = now + min_seconds

        def run(database: sqlite3.Connection) -> Header | None:
            update = "UPDATE stored SET used = ?, expires = MAX(expires, ?) WHERE key = ? AND expires >= ?"
            database.execute(update, (now, until, key, now))
            query = "SELECT header FROM stored WHERE area = ? AND key = ? AND expires >= ?"
            found = database.execute(query, (area, key, now)).fetchone()
            return None if found is None else msgspec.msgpack.decode(found[0], type=Header)

        return await self._file.run(run)

    async def list_newest(self, area: Area, namespace: str, most: int) -> dict[str, Header]:
        """Returns the headers of a tenant's values by their keys: of the `most` that were used last."""
        values = (area, tenant_of(namespace) or "-", time.time(), most)

        def run(database: sqlite3.Connection) -> dict[str, Header]:
            query = (
                f"SELECT key, header FROM stored WHERE area = ? AND tenant = ? AND expires >= ? AND {_FREE}"  # noqa: S608
                " ORDER BY used DESC LIMIT ?"
            )
            rows = database.execute(query, values).fetchall()
            return {key: msgspec.msgpack.decode(header, type=Header) for key, header in rows}

        return await self._file.run(run)

    async def read(self, _area: Area, key: str, _header: Header) -> bytes | None:
        """Returns a value's bytes; None if it has left the store."""

        def run(database: sqlite3.Connection) -> bytes | None:
            if database.execute("SELECT 1 FROM stored WHERE key = ?", (key,)).fetchone() is None:
                return None
            rows = database.execute("SELECT data FROM chunks WHERE key = ? ORDER BY number", (key,)).fetchall()
            return b"".join(data for (data,) in rows)

        return await self._file.run(run)

    async def remove(self, _area: Area, key: str, *, announcement: str = "") -> bool:  # noqa: ARG002 - as SharedStore
        """Removes a value. Returns whether it existed."""

        def run(database: sqlite3.Connection) -> bool:
            return database.execute("DELETE FROM stored WHERE key = ?", (key,)).rowcount > 0

        return await self._file.run(run)

    async def purge(self, prefix: str) -> None:
        """Removes all values of a tenant. `prefix` begins the tenant's namespaces."""
        await self._remove_each("SELECT key FROM stored WHERE tenant = ? LIMIT 1", tenant_of(prefix))

    async def _remove_each(self, query: str, *values: object) -> None:
        """Removes values one by one, so that the log never has more than one of them."""
        while await self._file.run(lambda database: _remove_one(database, query, *values)):
            pass

    async def close(self) -> None:
        """Closes the file. Idempotent."""
        await self._file.close()


def _remove_one(database: sqlite3.Connection, query: str, *values: object) -> bool:
    """Removes the value that a query finds. Returns whether it found one."""
    return database.execute(f"DELETE FROM stored WHERE key = ({query})", values).rowcount > 0  # noqa: S608


def _loser(
    database: sqlite3.Connection, area: Area, tenant: str, key: str, size: int, limit: int, own_limit: int
) -> str | None:
    """Returns the tenant that has to lose a value for one of this tenant, if any has; as commit.lua does.

    What has the same key is replaced, so it does not count.
    """
    query = "SELECT tenant, SUM(size) FROM stored WHERE area = ? AND key != ? GROUP BY tenant"
    sizes: dict[str, int] = dict(database.execute(query, (area, key)).fetchall())
    own = sizes.get(tenant, 0)
    if own + size > own_limit and own:
        return tenant
    if sum(sizes.values()) + size <= limit:
        return None
    largest = max(sizes, key=lambda each: sizes[each])
    return tenant if own and own + size > sizes[largest] else largest
