"""A file of the state folder: an SQLite database that is used in a thread of its own."""

import asyncio
import logging
import os
import shutil
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from glimpse.media.shared.values import StoreUnavailableError

_BUSY_SECONDS = 30.0
"""Longest wait for another process that writes the file."""
_SPARE_BYTES = 16 << 20
"""Room on the disk that new content leaves: without any, nothing could be deleted, since deletions are logged too."""
_FAILURES = (sqlite3.OperationalError, sqlite3.DatabaseError)
"""Errors of the disk and of a damaged file. Other subclasses of DatabaseError are mistakes in statements."""
_T = TypeVar("_T")

_logger = logging.getLogger(__name__)


class SqliteFile:
    """A database. Several processes may have the same file."""

    def __init__(self, path: Path | None, schema: str) -> None:
        """
        Args:
            path: The file, which is made with its folder if it is missing. None: the database is in memory.
            schema: Statements that make what is missing.

        Raises:
            OSError or sqlite3.Error: the file cannot be used.
        """
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="database" if path is None else path.name)
        self._database = self._threads.submit(_open, ":memory:" if path is None else str(path), schema).result()
        # What it has not yet written to the database is in its log, whose index processes share in memory.
        names = [] if path is None else [path, Path(f"{path}-wal"), Path(f"{path}-shm")]
        self._opened = [(name, name.stat()) for name in names]
        self._is_closed = False

    async def run(self, work: Callable[[sqlite3.Connection], _T], *, added_bytes: int = 0) -> _T:
        """Does something in a transaction.

        Args:
            added_bytes: Content that it adds. The disk must have room for it in the log, and then in the database.

        Raises:
            StoreUnavailableError: the file cannot be used: it is damaged or deleted, or its disk is full or fails.
        """

        def run() -> _T:
            try:
                self._check_paths()
                with self._database as database:
                    database.execute("BEGIN IMMEDIATE")
                    if added_bytes and not self._has_room(database, added_bytes):
                        raise sqlite3.OperationalError("its disk is full")
                    return work(database)
            except sqlite3.DatabaseError as error:
                if type(error) not in _FAILURES:
                    raise
                _logger.warning("%s (--state-folder) cannot be used: %s", self._path, error)
                raise StoreUnavailableError from None

        return await asyncio.wrap_future(self._threads.submit(run))

    def _check_paths(self) -> None:
        """Raises OperationalError if a file has left its path: SQLite would lose what it writes when it closes."""
        try:
            found = [(path, path.stat(), opened) for path, opened in self._opened]
        except OSError:
            found = None
        if found is None or not all(os.path.samestat(now, opened) for _, now, opened in found):
            raise sqlite3.OperationalError("it was deleted or replaced; restart the server")
        if found:
            index, now, opened = found[-1]
            if now.st_size < opened.st_size:
                # Memory past its end would end the process. SQLite makes an index of zeros anew from the log.
                os.truncate(index, 0)
                os.truncate(index, opened.st_size)
            elif now.st_size > opened.st_size:
                self._opened[-1] = index, now

    def _has_room(self, database: sqlite3.Connection, num_bytes: int) -> bool:
        if self._path is None:
            return True
        num_free, page_bytes = (_pragma(database, name) for name in ("freelist_count", "page_size"))
        grown_bytes = max(0, num_bytes - num_free * page_bytes)
        return shutil.disk_usage(self._path.parent).free >= num_bytes + grown_bytes + _SPARE_BYTES

    async def close(self) -> None:
        """Closes it. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            await asyncio.wrap_future(self._threads.submit(self._database.close))
            self._threads.shutdown()


def num_used_bytes(database: sqlite3.Connection) -> int:
    """Returns the size of the pages in use."""
    num_pages, num_free, page_bytes = (
        _pragma(database, name) for name in ("page_count", "freelist_count", "page_size")
    )
    return (num_pages - num_free) * page_bytes


def _pragma(database: sqlite3.Connection, name: str) -> int:
    return database.execute(f"PRAGMA {name}").fetchone()[0]


def _open(path: str, schema: str) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
    for setting in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", "secure_delete = ON"):
        database.execute(f"PRAGMA {setting}")
    database.executescript(schema)
    return database
