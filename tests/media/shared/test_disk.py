"""Uploads on disk: they outlive the process, within their budget, by tenant."""

import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest

from glimpse.media.cache.media_file import MediaFile
from glimpse.media.cache.memory_budget import MemoryBudget
from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.shared.disk import DiskStore
from glimpse.media.shared.keys import Area
from glimpse.media.shared.sqlite_file import SqliteFile
from glimpse.media.shared.values import StoreUnavailableError, store_errors
from glimpse.media.sources.uploads import FileDetails, Uploads

TENANT, OTHER = (f"{digit}" * 32 + "." for digit in "ab")


def uploads(folder: Path, *, copied: int = 0, max_bytes: int = 10_000) -> tuple[Uploads, DiskStore]:
    """What a process has: with `copied` 0, all is read from the disk."""
    disk = DiskStore(folder, budgets={Area.UPLOADS: max_bytes})
    kept = Uploads(
        max_bytes=max_bytes, ttl_seconds=60, memory_budget=MemoryBudget(), shared=disk, max_copied_bytes=copied
    )
    return kept, disk


def file(data: bytes) -> MediaFile:
    return MediaFile(digest=sha256(data).digest(), data=data)


async def test_an_upload_outlives_its_process(tmp_path: Path) -> None:
    before, disk = uploads(tmp_path)
    stored = await before.store(TENANT, file(b"x" * 5000), ttl_seconds=None, details=FileDetails("a.png", "vision"))
    await disk.close()
    after, disk = uploads(tmp_path)
    assert await after.find(TENANT, stored.handle) == stored
    assert (await after.find_all(TENANT)).read() == [stored]
    assert (await after.file(TENANT, stored.handle, max_bytes=10_000, seconds=5)).data == b"x" * 5000
    assert await after.find(OTHER, stored.handle) is None
    assert await after.remove(TENANT, stored.handle)
    assert await after.find(TENANT, stored.handle) is None
    await disk.close()


async def test_a_full_disk_is_told_as_one(tmp_path: Path) -> None:
    database = SqliteFile(tmp_path / "a.sqlite", "CREATE TABLE IF NOT EXISTS a (b BLOB)")
    await database.run(lambda file: file.execute("PRAGMA max_page_count = 2"))
    with (
        pytest.raises(MediaError, match="the disk of its --state-folder is full or fails; try again"),
        store_errors("try again"),
    ):
        await database.run(lambda file: file.execute("INSERT INTO a VALUES (zeroblob(100000))"))
    await database.close()


async def test_a_damaged_file_is_told_as_an_unavailable_store(tmp_path: Path) -> None:
    path, schema = tmp_path / "a.sqlite", "CREATE TABLE IF NOT EXISTS a (b BLOB)"
    database = SqliteFile(path, schema)
    await database.run(lambda file: file.execute("INSERT INTO a VALUES ('x')"))
    await database.close()
    with path.open("r+b") as damaged:
        damaged.seek(4096)  # the table's page, after that of the schema
        damaged.write(b"\xff" * 4096)
    database = SqliteFile(path, schema)
    with pytest.raises(MediaError) as error, store_errors("try again"):
        await database.run(lambda file: file.execute("SELECT * FROM a").fetchall())
    assert error.value.code is MediaErrorCode.STORE_UNAVAILABLE
    await database.close()


@pytest.mark.parametrize("left", ["a.sqlite", "a.sqlite-wal", "a.sqlite-shm"])
@pytest.mark.parametrize("successor", [None, "a file restored from a copy"])
async def test_a_file_that_has_left_its_path_is_told_as_an_unavailable_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, left: str, successor: str | None
) -> None:
    path = tmp_path / "a.sqlite"
    database = SqliteFile(path, "CREATE TABLE IF NOT EXISTS a (b BLOB)")
    (tmp_path / left).rename(tmp_path / "old")
    if successor is not None:
        (tmp_path / left).write_text(successor)
    with pytest.raises(StoreUnavailableError):
        await database.run(lambda file: file.execute("INSERT INTO a VALUES ('lost')"))
    assert f"{path} (--state-folder) cannot be used: it was deleted or replaced; restart the server" in caplog.text
    await database.close()


@pytest.mark.parametrize("num_bytes", [0, 100, 32768])
def test_an_index_of_the_log_that_is_truncated_is_made_anew(tmp_path: Path, num_bytes: int) -> None:
    """In a process of its own, which the system would end: SQLite maps the index."""
    program = f"""
import asyncio, os
from pathlib import Path
from glimpse.media.shared.sqlite_file import SqliteFile

async def check():
    path = Path({str(tmp_path / "a.sqlite")!r})
    one, other = (SqliteFile(path, "CREATE TABLE IF NOT EXISTS a (b BLOB)") for _ in range(2))
    num_rows = 0
    for database in (one, other, one):
        for _ in range(2):
            await database.run(lambda file: file.executemany("INSERT INTO a VALUES (zeroblob(4096))", [()] * 5000))
        num_rows += 10000
        assert os.path.getsize(str(path) + "-shm") > {num_bytes}
        os.truncate(str(path) + "-shm", {num_bytes})
        for each in (one, other):
            found = await each.run(lambda file: file.execute("SELECT COUNT(*) FROM a").fetchone())
            assert found == (num_rows,), found
    await one.close()
    await other.close()

asyncio.run(check())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


async def test_content_leaves_room_to_delete_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, disk = uploads(tmp_path)
    stored = await kept.store(TENANT, file(b"x" * 5000), ttl_seconds=None)
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: SimpleNamespace(free=16 << 20))
    with pytest.raises(MediaError, match="the disk of its --state-folder is full"):
        await kept.store(TENANT, file(b"y" * 1000), ttl_seconds=None)
    assert await kept.remove(TENANT, stored.handle)
    await disk.close()


async def test_what_is_deleted_leaves_room_for_new_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, disk = uploads(tmp_path, max_bytes=1 << 20)
    first = await kept.store(TENANT, file(b"x" * 400_000), ttl_seconds=None)
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: SimpleNamespace(free=(16 << 20) + 500_000))
    with pytest.raises(MediaError, match="is full"):
        await kept.store(TENANT, file(b"y" * 400_000), ttl_seconds=None)
    await kept.remove(TENANT, first.handle)
    assert await kept.store(TENANT, file(b"z" * 400_000), ttl_seconds=None)
    await disk.close()


async def test_a_value_that_replaces_one_makes_no_other_leave(tmp_path: Path) -> None:
    disk = DiskStore(tmp_path, budgets={Area.UPLOADS: 12_000})
    keys = [disk.keys.value(Area.UPLOADS, TENANT, "file", name) for name in "ab"]
    for key in (*keys, keys[1]):
        await disk.put(Area.UPLOADS, key, bytes(5000), digest=b"", seconds=60)
    assert set(await disk.list_newest(Area.UPLOADS, TENANT, 10)) == set(keys)
    await disk.close()


async def test_the_log_never_has_more_than_one_value_that_is_deleted(tmp_path: Path) -> None:
    disk = DiskStore(tmp_path, budgets={Area.UPLOADS: 100 << 20})
    num_bytes = 8 << 20
    for number in range(6):
        key = disk.keys.value(Area.UPLOADS, TENANT, "file", str(number))
        await disk.put(Area.UPLOADS, key, bytes(num_bytes), digest=b"", seconds=60)
    await disk.purge(TENANT)
    assert await disk.list_newest(Area.UPLOADS, TENANT, 10) == {}
    assert (tmp_path / "files.sqlite-wal").stat().st_size < 2 * num_bytes
    await disk.close()


async def test_the_least_recently_used_leave_and_a_purge_removes_one_tenant_s(tmp_path: Path) -> None:
    kept, disk = uploads(tmp_path)
    first, second = [await kept.store(TENANT, file(bytes([n]) * 3000), ttl_seconds=None) for n in (1, 2)]
    await kept.find(TENANT, first.handle)
    third = await kept.store(OTHER, file(b"3" * 4000), ttl_seconds=None)
    found = {each.handle for namespace in (TENANT, OTHER) for each in (await kept.find_all(namespace)).read()}
    assert found == {first.handle, third.handle}
    assert second.handle not in found
    with pytest.raises(MediaError, match="bytes"):
        await kept.store(OTHER, file(b"4" * 10_000), ttl_seconds=None)
    await disk.purge(TENANT)
    kept.purge(TENANT)
    assert await kept.find(TENANT, first.handle) is None
    assert await kept.find(OTHER, third.handle) == third
    await disk.close()
