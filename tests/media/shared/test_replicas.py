"""Two replicas with one Redis: media that one got are known to the other, and only to the same cache namespace."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import PIL.Image
import pytest

from glimpse.media.cache.memory_budget import MemoryBudget
from glimpse.media.cache.request_media import MediaUsage
from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.kind import MediaKind
from glimpse.media.processing.video_options import VideoOptions
from glimpse.media.shared.keys import Area
from glimpse.media.shared.store import CHUNK_BYTES
from glimpse.media.shared.values import Header, StoreUnavailableError
from glimpse.media.sources.source import DataSource, FrameSources, UrlSource, parse_url_text
from glimpse.media.sources.uploads import Uploads
from tests.media.images import encode, scene
from tests.media.shared.redis_server import RedisServer
from tests.media.shared.replicas import BY_UUID, Replica, refusal, replica
from tests.media.videos import greys, video
from tests.media.web import Web, respond, serve
from tests.waiting import until

PNG, OTHER_PNG = (encode(scene(60, 90, seed=seed), "PNG") for seed in (1, 2))
LARGE_PNG = encode(scene(900, 900), "PNG", compress_level=0)
FRAMES = FrameSources(frames=tuple(DataSource(data=encode(PIL.Image.fromarray(frame), "PNG")) for frame in greys(8)))
VIDEO = DataSource(data=video(greys(12)))
NOT_CACHED, UNAVAILABLE = MediaErrorCode.NOT_CACHED, MediaErrorCode.STORE_UNAVAILABLE


def url(web: Web) -> UrlSource:
    source = parse_url_text(web.url("/cat"))
    assert isinstance(source, UrlSource)
    return source


def fetches(usage: MediaUsage) -> tuple[int, int]:
    return usage.num_fetched, usage.num_fetch_cache_hits


@pytest.mark.parametrize("data", [PNG, LARGE_PNG])
async def test_image_that_one_replica_got_can_be_sent_by_uuid_to_another(
    one: Replica, other: Replica, data: bytes
) -> None:
    key = await one.send(data)
    assert await other.key() == key
    smaller, _ = await other.caching.image(BY_UUID, max_pixels=4 * 28 * 28)
    assert smaller.key != key


@pytest.mark.parametrize("source", [VIDEO, FRAMES], ids=["file", "frames"])
async def test_video_by_uuid_is_shared(one: Replica, other: Replica, source: Any) -> None:
    sent, _ = await one.caching.loaded_video(source, VideoOptions(), uuid="cat")
    await one.shared.written()
    again, _ = await other.caching.loaded_video(BY_UUID, VideoOptions())
    fewer, _ = await other.caching.loaded_video(BY_UUID, VideoOptions(num_frames=2))
    assert (again.key, len(fewer.pixels)) == (sent.key, 2)


async def test_uuid_refers_to_what_was_sent_last_to_any_replica(one: Replica, other: Replica) -> None:
    first = await one.send(PNG)
    assert await other.key() == first
    second = await other.send(OTHER_PNG)
    assert first != second
    assert [await each.key() for each in (one, other)] == [second, second]
    third = await one.send(PNG)
    assert [await each.key() for each in (one, other)] == [third, third]


async def test_clocks_of_replicas_do_not_decide_what_a_uuid_refers_to(
    one: Replica, other: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + 3600)
    await one.send(PNG)
    monkeypatch.setattr(time, "time", clock)
    last = await other.send(OTHER_PNG)
    assert [await each.key() for each in (one, other)] == [last, last]


async def test_uuid_that_was_sent_while_the_store_was_away_is_as_old_as_it_is(
    one: Replica, other: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> None:
        raise StoreUnavailableError

    with monkeypatch.context() as patch:
        patch.setattr(one.shared.store, "time", away)
        earlier = await one.send(PNG)
        assert await one.key() == earlier
    await asyncio.sleep(0.5)  # ages are as exact as the store's answers are prompt
    last = await other.send(OTHER_PNG)
    assert [await each.key() for each in (one, other)] == [last, last]


async def test_uuid_just_sent_is_known_before_it_is_shared(one: Replica) -> None:
    await one.send(PNG)
    newer, _ = await one.caching.image(DataSource(data=OTHER_PNG), uuid="cat")
    assert await one.key() == newer.key


async def test_upload_is_known_to_all_replicas_until_one_removes_it(one: Replica, other: Replica) -> None:
    source = await one.upload(LARGE_PNG)
    sent, _ = await one.caching.image(source)
    assert (await other.caching.image(source))[0].key == sent.key
    assert await other.caching.uploads.find("", source.handle) == await one.caching.uploads.find("", source.handle)
    assert await other.caching.uploads.remove("", source.handle)
    assert not await one.caching.uploads.remove("", source.handle)
    for each in (one, other):
        assert await refusal(each.caching.image(source)) == NOT_CACHED
    await until(lambda: one.caching.uploads.num_bytes == other.caching.uploads.num_bytes == 0)


async def test_concurrent_requests_read_an_upload_once(one: Replica, other: Replica, redis: RedisServer) -> None:
    source = await one.upload(LARGE_PNG)
    redis.client().config_resetstat()
    loaded = await asyncio.gather(*(other.caching.image(source) for _ in range(8)))
    assert len({image.key for image, _ in loaded}) == 1
    num_chunks = -(-len(LARGE_PNG) // CHUNK_BYTES)
    assert num_chunks > 1
    assert redis.client().info("commandstats")["cmdstat_hget"]["calls"] == 8 + num_chunks  # 8 look for it


async def test_upload_too_large_for_a_copy_is_read_by_each_request(one: Replica, other: Replica) -> None:
    source = await one.upload(PNG)
    uploads = Uploads(
        max_bytes=8 << 20,
        ttl_seconds=60,
        memory_budget=MemoryBudget(),
        shared=other.shared.store,
        max_copied_bytes=len(PNG),
    )
    for _ in range(2):
        assert (await uploads.file("", source.handle, max_bytes=1 << 20, seconds=30)).data == PNG
        assert uploads.num_bytes == 0


async def test_upload_that_is_removed_while_it_is_read_is_not_copied(
    one: Replica, other: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, store, heard = await one.upload(PNG), other.shared.store, asyncio.Event()
    store.on_removal(lambda _: heard.set())
    read = store.read

    async def read_late(area: Area, key: str, header: Header) -> bytes | None:
        data = await read(area, key, header)
        await one.caching.uploads.remove("", source.handle)
        await heard.wait()
        return data

    monkeypatch.setattr(store, "read", read_late)
    assert (await other.caching.uploads.file("", source.handle, max_bytes=1 << 20, seconds=30)).data == PNG
    assert other.caching.uploads.num_bytes == 0


async def test_fetched_file_is_not_fetched_again_by_another_replica(one: Replica, other: Replica) -> None:
    async with serve() as web:
        web.answers["/cat"] = respond(PNG, headers={"Cache-Control": "max-age=60"})
        _, fetched = await one.caching.image(url(web))
        await one.shared.written()
        _, shared = await other.caching.image(url(web))
        assert (fetches(fetched), fetches(shared), len(web.requests)) == ((1, 0), (0, 1), 1)
        _, elsewhere = await other.caching.image(url(web), "another salt")
        assert (fetches(elsewhere), len(web.requests)) == ((1, 0), 2)
        other.caching.clock.now += 60
        await other.caching.image(url(web))
        assert len(web.requests) == 2  # Redis has it still: its clock did not advance
        web.answers["/cat"] = respond(PNG)
        _, first = await one.caching.image(url(web), "no-store", uuid="cat")
        await one.shared.written()
        _, again = await other.caching.image(url(web), "no-store", uuid="cat")
        assert (fetches(first), fetches(again)) == ((1, 0), (0, 1))


async def test_another_namespace_sees_nothing(one: Replica, other: Replica) -> None:
    tenant = "0123456789abcdef" * 2
    await one.send(PNG, f"{tenant}.salt")
    source = await one.upload(PNG, f"{tenant}.salt")
    for namespace in ("", "salt", f"{tenant}.", f"{tenant}.salt2", f"{tenant[::-1]}.salt"):
        assert await refusal(other.caching.image(BY_UUID, namespace)) == NOT_CACHED
        assert await refusal(other.caching.image(source, namespace)) == NOT_CACHED
        assert not await other.caching.uploads.remove(namespace, source.handle)
    for known in (BY_UUID, source):
        image, _ = await other.caching.image(known, f"{tenant}.salt")
        assert image.pixels.size


async def test_purge_removes_what_all_replicas_have_of_a_tenant(
    one: Replica, other: Replica, redis: RedisServer
) -> None:
    mine, yours = f"{'0123456789abcdef' * 2}.", f"{'fedcba9876543210' * 2}."
    source = await other.upload(PNG, f"{mine}a")
    for namespace in (f"{mine}a", f"{mine}b", f"{yours}a", "", "0123"):
        await one.send(PNG, namespace)
        await other.key(namespace)
    one.caching.store.purge(mine)
    await one.shared.store.purge(mine)
    for each in (one, other):
        for namespace in (f"{mine}a", f"{mine}b"):
            assert await refusal(each.key(namespace)) == NOT_CACHED
        assert await refusal(each.caching.image(source, f"{mine}a")) == NOT_CACHED
        for namespace in (f"{yours}a", "", "0123"):
            assert await each.key(namespace)
    assert other.caching.uploads.num_bytes == 0
    assert not [key for key in redis.client().scan_iter() if mine[:32].encode() in key]


async def test_tampered_files_are_refused(one: Replica, other: Replica, redis: RedisServer) -> None:
    await one.send(PNG)
    source = await one.upload(PNG)
    for key in redis.client().scan_iter():
        if redis.client().type(key) == b"hash" and redis.client().hexists(key, "0"):
            redis.client().hset(key, "0", PNG[::-1])
    assert await refusal(other.caching.image(BY_UUID)) == NOT_CACHED
    assert await refusal(other.caching.image(source)) == NOT_CACHED
    assert await one.key() == await one.send(PNG)  # sent again, as the error asks
    assert await other.key()


async def test_without_redis_requests_go_on_with_what_they_carry(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as redis:
        async with replica(redis) as one, replica(redis) as other, serve() as web:
            web.answers["/cat"] = respond(PNG)
            key, source = await one.send(PNG), await one.upload(PNG)
            redis.stop()
            await until(lambda: not one.shared.store.is_available and not other.shared.store.is_available)
            assert await one.key() == key  # known here
            assert (await one.caching.image(source))[0].key == key
            for unknown in (BY_UUID, source):
                assert await refusal(other.caching.image(unknown)) == UNAVAILABLE
            for known in (DataSource(data=PNG), url(web)):
                assert (await other.caching.image(known, uuid="dog"))[0].key == key
            assert await refusal(other.upload(PNG)) == UNAVAILABLE
            assert await refusal(other.caching.uploads.remove("", source.handle)) == UNAVAILABLE


async def test_redis_that_lost_everything_gets_it_back_from_the_replicas(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as redis:
        async with replica(redis) as one, replica(redis) as other:
            key, source = await one.send(PNG), await one.upload(PNG)
            removed = await one.upload(OTHER_PNG)
            await other.caching.uploads.remove("", removed.handle)
            await until(lambda: one.caching.uploads.num_bytes < 2 * len(PNG))
            redis.stop()
            await until(lambda: not one.shared.store.is_available)
            newer = await one.send(OTHER_PNG)  # could not be shared yet
            redis.start()

            async def is_back(loading: Callable[[], Awaitable[object]]) -> None:
                while True:
                    try:
                        await loading()
                        return
                    except MediaError:
                        await asyncio.sleep(0.02)

            await is_back(lambda: other.caching.image(source))
            await is_back(other.key)
            assert await other.key() == newer != key
            assert await refusal(other.caching.image(removed)) == NOT_CACHED


async def test_slow_redis_holds_no_request_that_carries_its_bytes(redis: RedisServer) -> None:
    async with replica(redis) as one:
        source = await one.upload(PNG)
        redis.pause()
        try:
            # A request that waited for Redis would wait for a minute.
            for seed in range(4):
                data = encode(scene(60, 60, seed=seed), "PNG")
                await one.caching.image(DataSource(data=data), uuid=f"cat {seed}")
            waiting = asyncio.create_task(one.caching.image(source))
            await asyncio.sleep(0)
            assert not waiting.done()
        finally:
            redis.resume()
        image, _ = await waiting
    assert image.pixels.size


async def test_each_replica_lists_all_uploads_of_a_namespace(one: Replica, other: Replica) -> None:
    tenant = f"{'a' * 32}."
    first = await one.upload(PNG, tenant)
    one.caching.clock.now += 1
    second = await one.upload(OTHER_PNG, tenant)
    await other.upload(PNG, f"{tenant}salt")
    await other.upload(PNG, f"{'b' * 32}.")
    for each in (one, other):
        assert [upload.handle for upload in (await each.caching.uploads.find_all(tenant)).read()] == [
            second.handle,
            first.handle,
        ]
    assert (await other.caching.uploads.known(tenant, first.handle)).kind is MediaKind.IMAGE
    await other.caching.uploads.remove(tenant, second.handle)
    assert [upload.handle for upload in (await one.caching.uploads.find_all(tenant)).read()] == [first.handle]


async def test_lists_more_uploads_than_redis_returns_at_once(
    one: Replica, other: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glimpse.media.shared.store._LISTED_AT_ONCE", 2)
    monkeypatch.setattr("glimpse.media.sources.uploads.MAX_LISTED", 5)
    handles = [(await one.upload(PNG)).handle for _ in range(6)]
    assert {upload.handle for upload in (await other.caching.uploads.find_all("")).read()} == set(handles[1:])
