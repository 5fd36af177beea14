"""Stores of batches: SQLite in memory and in a file, and Redis."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from glimpse.media.shared.address import parse_store_url
from glimpse.server.batches.redis_store import RedisStore
from glimpse.server.batches.store import BatchStore, SqliteStore


@pytest.fixture(params=["memory", "file", "redis"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[BatchStore]:
    kind: Any = request.param
    if kind == "redis":
        opened: BatchStore = RedisStore(parse_store_url(request.getfixturevalue("redis").url), prefix="t:")
    else:
        opened = SqliteStore(tmp_path / "state" if kind == "file" else None)
    yield opened
    await opened.close()
