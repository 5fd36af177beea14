"""Parts of uploads: stored once, and gone with the last upload that has them, in memory, on disk and in Redis."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from hashlib import sha256
from pathlib import Path

import pytest

from glimpse.media.cache.media_file import MediaFile
from glimpse.media.cache.memory_budget import MemoryBudget
from glimpse.media.errors import MediaError
from glimpse.media.shared.disk import DiskStore
from glimpse.media.shared.keys import Area, share_of
from glimpse.media.shared.store import SharedStore
from glimpse.media.sources.uploads import FileDetails, Part, Upload, Uploads
from tests.media.shared.redis_server import RedisServer
from tests.media.shared.test_store import connected

MAX_BYTES = 20_000
TENANT = "ab" * 16 + "."
Shared = DiskStore | SharedStore | None


@pytest.fixture(params=["memory", "disk", "redis"])
async def shared(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Shared]:
    budgets = dict.fromkeys(Area, MAX_BYTES)
    match request.param:
        case "memory":
            yield None
        case "disk":
            disk = DiskStore(tmp_path, budgets=budgets)
            yield disk
            await disk.close()
        case _:
            redis: RedisServer = request.getfixturevalue("redis")
            async with connected(redis, budgets=budgets) as store:
                yield store


def responses(shared: Shared, *, ttl_seconds: float = 60) -> Uploads:
    return Uploads(
        max_bytes=MAX_BYTES,
        ttl_seconds=ttl_seconds,
        memory_budget=MemoryBudget(),
        shared=shared,
        max_copied_bytes=0,
        area=Area.RESPONSES,
    )


def file(data: bytes) -> MediaFile:
    return MediaFile(digest=sha256(data).digest(), data=data)


def part(data: bytes, share: str = "") -> Part:
    handle = f"media-{sha256(data).hexdigest()}{f'-{share}' if share else ''}"
    return Part(handle=handle, file=file(data), details=FileDetails())


async def store(kept: Uploads, name: str, parts: Sequence[Part], namespace: str = TENANT) -> Upload:
    return await kept.store(namespace, file(name.encode()), ttl_seconds=None, handle=name, parts=parts)


async def there(kept: Uploads, *handles: str, namespace: str = TENANT) -> list[bool]:
    return [await kept.find(namespace, handle) is not None for handle in handles]


LARGE, OTHER = part(b"l" * 6000), part(b"o" * 6000)


async def test_a_part_is_stored_once_and_leaves_with_the_last_that_has_it(shared: Shared) -> None:
    kept = responses(shared)
    for name in ("a", "b", "c", "d"):  # four times the part would be too much
        await store(kept, name, [LARGE])
    assert await there(kept, "a", "b", "c", "d", LARGE.handle) == [True] * 5
    read = await kept.file(TENANT, LARGE.handle, max_bytes=MAX_BYTES, seconds=5)
    assert read.data == LARGE.file.data
    for name in ("a", "b", "c"):
        assert await kept.remove(TENANT, name)
    assert await there(kept, "d", LARGE.handle) == [True, True]
    assert await kept.remove(TENANT, "d")
    assert await there(kept, LARGE.handle) == [False]


async def test_parts_leave_for_lack_of_room_with_what_has_them(shared: Shared) -> None:
    kept = responses(shared)
    await store(kept, "a", [LARGE])
    await store(kept, "b", [LARGE, OTHER])
    assert await there(kept, "a") == [True]  # used last
    await store(kept, "c", [part(b"c" * 8000)])
    assert await there(kept, "b", OTHER.handle) == [False, False]
    assert await there(kept, "a", LARGE.handle, "c") == [True, True, True]


async def test_what_is_too_large_with_its_parts_is_not_stored(shared: Shared) -> None:
    kept = responses(shared)
    with pytest.raises(MediaError):
        await store(kept, "a", [LARGE, OTHER, part(b"p" * 6000), part(b"q" * 6000)])
    assert await there(kept, "a") == [False]
    await store(kept, "b", [LARGE, OTHER])
    assert await there(kept, "b", LARGE.handle, OTHER.handle) == [True, True, True]


async def test_a_part_lives_as_long_as_the_last_that_has_it(shared: Shared) -> None:
    await store(responses(shared, ttl_seconds=1), "a", [LARGE, OTHER])
    kept = responses(shared)
    await store(kept, "b", [LARGE])
    await asyncio.sleep(1.2)
    await store(kept, "c", [])
    assert await there(kept, "a", OTHER.handle) == [False, False]
    assert await there(kept, "b", LARGE.handle) == [True, True]
    assert await kept.remove(TENANT, "b")
    assert await there(kept, LARGE.handle) == [False]


async def test_a_purge_removes_parts_too(shared: Shared) -> None:
    kept = responses(shared)
    await store(kept, "a", [LARGE])
    if shared is not None:
        await shared.purge(TENANT)
    kept.purge(TENANT)
    assert await there(kept, "a", LARGE.handle) == [False, False]


async def test_without_tenants_each_client_has_a_share(shared: Shared) -> None:
    kept, (one, many) = responses(shared), map(share_of, ("one", "many"))
    await store(kept, f"resp_0-{one}", [], namespace="")
    for number in range(20):
        await store(kept, f"resp_{number}-{many}--key-1", [part(b"%d" % number * 1000, many)], namespace="")
    found = await there(kept, f"resp_0-{one}", f"resp_0-{many}--key-1", f"resp_19-{many}--key-1", namespace="")
    assert found == [True, False, True]
