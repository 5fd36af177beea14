"""Uploads: only complete files are stored, handles belong to a cache namespace, and limits of time and size."""

import asyncio
from collections.abc import Sequence
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glimpse.media.cache.media_file import MediaFile
from glimpse.media.cache.memory_budget import MemoryBudget
from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.kind import MediaKind
from glimpse.media.sources.uploads import FileDetails, Uploads
from tests.clock import Clock

DATA = b"example image"


def make_uploads(
    *, max_bytes: int = 10_000, max_file_bytes: int = 5000, memory_budget: MemoryBudget | None = None
) -> Uploads:
    return Uploads(
        max_bytes=max_bytes,
        ttl_seconds=60,
        memory_budget=memory_budget or MemoryBudget(),
        max_file_bytes=max_file_bytes,
        clock=Clock(1000.0),
    )


async def receive(
    uploads: Uploads, chunks: Sequence[bytes], *, digest: bytes | None = None, num_bytes: int | None = None
) -> MediaFile:
    digest = sha256(b"".join(chunks)).digest() if digest is None else digest
    with uploads.receive(num_bytes=num_bytes) as incoming:
        for chunk in chunks:
            incoming.append(chunk)
        return await incoming.finish(digest=digest, num_bytes=num_bytes)


async def stored(uploads: Uploads, data: bytes, namespace: str = "", *, most: int | None = None) -> str:
    file = MediaFile(digest=sha256(data).digest(), data=data)
    return (await uploads.store(namespace, file, ttl_seconds=None, max_tenant_bytes=most)).handle


async def content(uploads: Uploads, namespace: str, handle: str, *, max_bytes: int = 5000) -> MediaFile:
    return await uploads.file(namespace, handle, max_bytes=max_bytes, seconds=30)


@pytest.mark.parametrize("num_bytes", [None, len(DATA)])
async def test_joins_chunks(num_bytes: int | None) -> None:
    file = await receive(make_uploads(), [DATA[:3], b"", DATA[3:]], num_bytes=num_bytes)
    assert file == MediaFile(digest=sha256(DATA).digest(), data=DATA)


@pytest.mark.parametrize(
    ("chunks", "digest", "num_bytes", "code"),
    [
        ([DATA], bytes(32), None, MediaErrorCode.UPLOAD_MISMATCH),
        ([DATA], None, len(DATA) + 1, MediaErrorCode.UPLOAD_MISMATCH),
        ([DATA], None, len(DATA) - 1, MediaErrorCode.UPLOAD_MISMATCH),
        ([], None, None, MediaErrorCode.UPLOAD_MISMATCH),
        ([b"x" * 3000, b"x" * 2001], None, None, MediaErrorCode.TOO_LARGE),
        ([], None, 5001, MediaErrorCode.TOO_LARGE),
    ],
)
async def test_refuses_content_that_differs_from_its_declaration(
    chunks: list[bytes], digest: bytes | None, num_bytes: int | None, code: MediaErrorCode
) -> None:
    uploads = make_uploads()
    with pytest.raises(MediaError) as caught:
        await receive(uploads, chunks, digest=digest, num_bytes=num_bytes)
    assert (caught.value.code, uploads.num_bytes) == (code, 0)


async def test_incoming_uploads_share_the_memory_budget_and_release_it() -> None:
    memory_budget = MemoryBudget(max_bytes=6000)
    uploads = make_uploads(memory_budget=memory_budget)
    with (
        uploads.receive() as first,
        uploads.receive() as second,
    ):
        first.append(b"x" * 4000)
        with pytest.raises(MediaError) as caught:
            second.append(b"x" * 4000)
        assert caught.value.code == MediaErrorCode.OVERLOADED
    assert (memory_budget.num_bytes, uploads.num_bytes) == (0, 0)


async def test_handle_is_valid_in_its_namespace_until_it_expires() -> None:
    clock = Clock(1000.0)
    uploads = Uploads(max_bytes=10_000, ttl_seconds=60, memory_budget=MemoryBudget(), clock=clock)
    file = MediaFile(digest=sha256(DATA).digest(), data=DATA)
    short, long = [await uploads.store("a", file, ttl_seconds=seconds) for seconds in (10, 1000)]
    assert (short.expires, long.expires) == (clock.now + 10, clock.now + 60)
    assert await content(uploads, "a", short.handle) == file
    with pytest.raises(MediaError) as caught:
        await content(uploads, "a", short.handle, max_bytes=len(DATA) - 1)
    assert caught.value.code == MediaErrorCode.TOO_LARGE
    assert await uploads.find("b", short.handle) is None
    assert await uploads.find("", short.handle) is None
    clock.now += 10
    assert (await uploads.find("a", short.handle), await uploads.find("a", long.handle)) == (None, long)


async def test_handles_are_unique() -> None:
    uploads = make_uploads()
    handles = {await stored(uploads, DATA) for _ in range(100)}
    assert len(handles) == 100
    assert {len(handle) for handle in handles} == {len("file-") + 32}


async def test_upload_can_only_be_removed_in_its_namespace() -> None:
    uploads = make_uploads()
    handle = await stored(uploads, DATA, "a")
    assert not await uploads.remove("b", handle)
    assert await uploads.remove("a", handle)
    assert not await uploads.remove("a", handle)
    assert (await uploads.find("a", handle), uploads.num_bytes) == (None, 0)


async def test_refuses_uploads_if_they_are_disabled() -> None:
    assert make_uploads().is_enabled
    uploads = make_uploads(max_bytes=0)
    assert not uploads.is_enabled
    with pytest.raises(MediaError, match="--upload-cache-bytes"):
        await content(uploads, "", "upload-x")


@given(st.lists(st.integers(1, 5000), max_size=30))
def test_new_uploads_evict_the_oldest(sizes: list[int]) -> None:
    asyncio.run(_check_eviction(sizes))


async def _check_eviction(sizes: list[int]) -> None:
    uploads = make_uploads()
    handles: list[str] = []
    for size in sizes:
        handles.append(await stored(uploads, bytes(size)))
        assert uploads.num_bytes <= 10_000
        assert await uploads.find("", handles[-1]) is not None
    found = [await uploads.find("", handle) is not None for handle in handles]
    assert found == sorted(found)


ACME, OTHER = (f"{digit * 32}.salt" for digit in "ab")
"""Cache namespaces of two tenants."""


async def are_stored(uploads: Uploads, namespace: str, handles: Sequence[str]) -> list[bool]:
    return [await uploads.find(namespace, handle) is not None for handle in handles]


async def test_tenant_over_its_limit_loses_its_own_oldest_uploads() -> None:
    uploads = make_uploads()
    other = [await stored(uploads, bytes(1000), OTHER) for _ in range(2)]
    own = [await stored(uploads, bytes(1000), ACME, most=4000) for _ in range(3)]
    assert await are_stored(uploads, ACME, own) == [False, True, True]
    assert await are_stored(uploads, OTHER, other) == [True, True]


async def test_flood_of_one_tenant_evicts_no_upload_of_another() -> None:
    uploads = make_uploads()
    other = [await stored(uploads, bytes(1000), OTHER) for _ in range(2)]
    for index in range(20):
        await stored(uploads, bytes(1000), f"{'a' * 32}.{index}")
    assert await are_stored(uploads, OTHER, other) == [True, True]


@pytest.mark.parametrize("num_bytes", [None, 1001])
async def test_file_over_the_limit_of_its_tenant_is_refused(num_bytes: int | None) -> None:
    uploads = make_uploads()
    with (
        pytest.raises(MediaError) as caught,
        uploads.receive(num_bytes=num_bytes, max_tenant_bytes=1512) as incoming,
    ):
        incoming.append(bytes(1001))
    assert caught.value.code is MediaErrorCode.TOO_LARGE
    assert "1000 bytes" in caught.value.message
    assert await stored(uploads, bytes(1000), ACME, most=1512)


async def test_lists_what_a_namespace_has_the_latest_first() -> None:
    clock = Clock(1000.0)
    uploads = Uploads(max_bytes=10_000, ttl_seconds=60, memory_budget=MemoryBudget(), clock=clock)
    file = MediaFile(digest=sha256(DATA).digest(), data=DATA)
    listed: list[str] = []
    for details, ttl_seconds in (
        (FileDetails("a", "vision"), 60),
        (FileDetails("b", "batch"), 5),
        (FileDetails("c", "vision"), 60),
    ):
        clock.now += 1
        listed.insert(0, (await uploads.store(ACME, file, ttl_seconds=ttl_seconds, details=details)).handle)
    await stored(uploads, DATA, OTHER)
    await stored(uploads, DATA, f"{'a' * 32}.another salt")
    await content(uploads, ACME, listed[2])  # use changes no order
    assert [upload.handle for upload in (await uploads.find_all(ACME)).read()] == listed
    clock.now += 5
    left = (await uploads.find_all(ACME)).read()
    assert [(upload.details.filename, upload.details.purpose) for upload in left] == [("c", "vision"), ("a", "vision")]
    assert (await uploads.find_all("")).read() == []


async def test_list_has_no_more_than_the_uploads_used_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glimpse.media.sources.uploads.MAX_LISTED", 2)
    uploads = make_uploads()
    handles = [await stored(uploads, DATA) for _ in range(4)]
    await content(uploads, "", handles[0])
    assert {upload.handle for upload in (await uploads.find_all("")).read()} == {handles[0], handles[3]}


async def test_a_file_that_is_read_out_counts_as_memory_until_the_end() -> None:
    memory_budget = MemoryBudget()
    uploads = make_uploads(memory_budget=memory_budget)
    handle = await stored(uploads, DATA, ACME)
    async with uploads.opened(ACME, handle, seconds=30) as opened:
        assert opened is not None
        upload, file = opened
        assert (upload.handle, file.data, memory_budget.num_bytes) == (handle, DATA, len(DATA))
    async with uploads.opened(OTHER, handle, seconds=30) as opened:
        assert (opened, memory_budget.num_bytes) == (None, 0)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n", MediaKind.IMAGE),
        (b"\x00\x00\x00\x18ftypisom", MediaKind.VIDEO),
        (b"fLaC", MediaKind.AUDIO),
        (b"{}", None),
    ],
)
async def test_knows_the_kind_of_each_upload(data: bytes, kind: MediaKind | None) -> None:
    uploads = make_uploads()
    assert (await uploads.known("", await stored(uploads, data))).kind is kind
