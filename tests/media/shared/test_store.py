"""The shared store on a real Redis: what it holds, for how long, for whom, and what happens while Redis is away."""

import asyncio
import re
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis as AsyncRedis

from glimpse.media.shared.address import parse_store_url
from glimpse.media.shared.keys import Area
from glimpse.media.shared.link import StoreUnavailableError
from glimpse.media.shared.store import CHUNK_BYTES, OVERHEAD_BYTES, Announcements, Header, Outcome, SharedStore
from tests.media.shared.redis_server import RedisServer
from tests.paths import ROOT
from tests.waiting import until

DATA = b"example image"
LARGE = bytes(range(256)) * (CHUNK_BYTES // 256 * 2) + b"the rest"
BUDGETS = {Area.MEDIA: 64 << 20, Area.UPLOADS: 64 << 20}
CERTIFICATES = ROOT / "tests" / "gateway" / "certificates"
TENANT = "0123456789abcdef" * 2


@asynccontextmanager
async def connected(redis: RedisServer, **options: Any) -> AsyncGenerator[SharedStore]:
    options = {"prefix": "glimpse:", "budgets": BUDGETS, "command_seconds": 60} | options
    url, ca = options.pop("url", redis.url), options.pop("ca", None)
    store = SharedStore(parse_store_url(url, ca), **options)
    await store.start()
    try:
        yield store
    finally:
        await store.close()


def key(store: SharedStore, name: str, namespace: str = "", area: Area = Area.MEDIA) -> str:
    return store.keys.value(area, namespace, "image", name)


async def put(
    store: SharedStore, name: str, data: bytes = DATA, *, seconds: float = 60, area: Area = Area.MEDIA
) -> Header | None:
    return await store.put(
        area, key(store, name, area=area), data, digest=sha256(data).digest(), seconds=seconds, note=b"n"
    )


async def get(store: SharedStore, name: str, namespace: str = "") -> bytes | None:
    where = key(store, name, namespace)
    header = await store.find(Area.MEDIA, where)
    return None if header is None else await store.read(Area.MEDIA, where, header)


@pytest.mark.parametrize("data", [DATA, b"", LARGE, LARGE[:CHUNK_BYTES]])
async def test_another_server_reads_what_one_stored(redis: RedisServer, data: bytes) -> None:
    async with connected(redis) as one, connected(redis) as other:
        stored = await put(one, "cat", data)
        assert stored is not None
        assert stored == await other.find(Area.MEDIA, key(other, "cat"))
        assert (stored.num_bytes, stored.digest, stored.note) == (len(data), sha256(data).digest(), b"n")
        assert await get(other, "cat") == data
        assert await get(other, "dog") is None


async def test_later_value_replaces_an_earlier_one(redis: RedisServer) -> None:
    async with connected(redis) as store:
        await put(store, "cat", LARGE)
        await put(store, "cat")
        assert await get(store, "cat") == DATA


async def test_no_two_namespaces_areas_or_kinds_share_a_key(redis: RedisServer) -> None:
    async with connected(redis) as store:
        names = [
            store.keys.value(area, namespace, kind, name)
            for area in Area
            for namespace in ("", "a", "ab", f"{TENANT}.a", f"{TENANT}.b")
            for kind in ("", "b", "bc")
            for name in ("", "c", "bc", "abc")
        ]
        assert len(set(names)) == len(names)


async def test_redis_sees_no_names_and_only_keys_with_the_prefix(redis: RedisServer) -> None:
    async with connected(redis, prefix="ours:") as store, connected(redis, prefix="theirs:") as other:
        await store.put(Area.MEDIA, key(store, "my uuid", "my salt"), DATA, digest=sha256(DATA).digest(), seconds=60)
        assert await get(other, "my uuid", "my salt") is None
        keys = [name for name in redis.client().scan_iter() if name != b"theirs:clock"]
        assert keys
        assert all(name.startswith(b"ours:") for name in keys)
        assert not any(b"my" in name for name in keys)


async def test_values_expire_and_leave_no_index_behind(redis: RedisServer) -> None:
    async with connected(redis) as store:
        await put(store, "cat", seconds=0.2)
        await put(store, "dog", seconds=60)
        await until(lambda: not redis.client().exists(key(store, "cat")))
        assert await get(store, "cat") is None
        await put(store, "cow")
        assert redis.client().hlen("glimpse:media-sizes") == 3  # dog, cow and the total
        assert all(redis.client().ttl(name) > 0 for name in redis.client().scan_iter())


async def test_lifetime_can_be_prolonged_but_not_shortened(redis: RedisServer) -> None:
    async with connected(redis) as store:
        await put(store, "cat", seconds=60)
        for seconds, least in ((1000, 900), (10, 900)):
            assert await store.find(Area.MEDIA, key(store, "cat"), min_seconds=seconds)
            assert redis.client().ttl(key(store, "cat")) > least


async def test_area_stays_within_its_budget_and_drops_the_least_recently_used(redis: RedisServer) -> None:
    data = b"x" * 10_000
    async with connected(redis, budgets={Area.MEDIA: 36_000, Area.UPLOADS: 20_000}) as store:
        for name in ("a", "b", "c"):
            await put(store, name, data)
        assert await get(store, "a") == data  # b is now the least recently used
        await put(store, "d", data)
        assert [await get(store, name) is not None for name in "abcd"] == [True, False, True, True]
        await put(store, "a", data, area=Area.UPLOADS)
        assert [await get(store, name) is not None for name in "acd"] == [True, True, True]
        assert int(redis.client().hget("glimpse:media-sizes", "total")) <= 36_000
        assert await put(store, "e", b"x" * 36_001) is None
        assert await get(store, "a") == data


def tenant_key(store: SharedStore, tenant: str, name: str) -> str:
    return store.keys.value(Area.UPLOADS, f"{tenant * 32}.salt", "upload", name)


async def are_stored(store: SharedStore, tenant: str, names: str) -> list[bool]:
    return [await store.find(Area.UPLOADS, tenant_key(store, tenant, name)) is not None for name in names]


async def put_all(store: SharedStore, tenant: str, names: str, max_tenant_bytes: int | None = None) -> None:
    data = b"x" * 10_000
    for name in names:
        await store.put(
            Area.UPLOADS,
            tenant_key(store, tenant, name),
            data,
            digest=sha256(data).digest(),
            seconds=60,
            max_tenant_bytes=max_tenant_bytes,
        )


async def test_tenant_that_has_most_loses_its_least_recently_used(redis: RedisServer) -> None:
    async with connected(redis, budgets={Area.MEDIA: 0, Area.UPLOADS: 43_000}) as store:
        await put_all(store, "b", "a")
        await put_all(store, "a", "abc")
        assert await are_stored(store, "a", "a") == [True]  # b is now its least recently used
        await put_all(store, "b", "b")
        assert await are_stored(store, "a", "abc") == [True, False, True]
        await put_all(store, "a", "dgh")
        assert (await are_stored(store, "a", "gh"), await are_stored(store, "b", "ab")) == ([True, True], [True, True])
        assert int(redis.client().hget("glimpse:uploads-sizes", "total")) <= 43_000


async def test_tenant_over_its_limit_loses_its_own(redis: RedisServer) -> None:
    async with connected(redis) as one, connected(redis) as other:
        await put_all(one, "b", "a")
        await put_all(one, "a", "ab", 25_000)
        await put_all(other, "a", "c", 25_000)
        assert await are_stored(one, "a", "abc") == [False, True, True]
        await put_all(other, "a", "d", 10_000)
        assert await are_stored(one, "a", "bcd") == [True, True, False]
        assert await are_stored(one, "b", "a") == [True]
        for name in "bc":
            await one.remove(Area.UPLOADS, tenant_key(one, "a", name), announcement="")
        assert redis.client().zrange("glimpse:uploads-shares", 0, -1) == [b"b" * 32]


def calls(redis: RedisServer) -> dict[str, int]:
    """How often each command ran since the last `config resetstat`, in scripts too."""
    stats: dict[str, dict[str, int]] = redis.client().info("commandstats")
    return {name.removeprefix("cmdstat_"): each["calls"] for name, each in stats.items()}


async def test_room_among_many_tenants_is_made_in_short_scripts(redis: RedisServer) -> None:
    """Redis serves nobody while a script runs."""
    num_tenants, each = 600, 1000
    size = each + OVERHEAD_BYTES
    async with connected(redis, budgets={Area.UPLOADS: num_tenants * size}) as store:

        async def upload(tenant: int, num_bytes: int) -> Header | None:
            name = store.keys.value(Area.UPLOADS, f"{tenant:032x}.", "upload", "u")
            return await store.put(Area.UPLOADS, name, bytes(num_bytes), digest=b"", seconds=60)

        assert all(await asyncio.gather(*(upload(tenant, each) for tenant in range(num_tenants))))
        redis.client().config_resetstat()
        assert await upload(num_tenants, 590 * size - OVERHEAD_BYTES)
        made = calls(redis)
        left = redis.client().zcard("glimpse:uploads-shares")
        assert left == 11
        num_removed = num_tenants + 1 - left
        assert made["evalsha"] >= 3, "a script removes some hundreds"
        assert sum(made.values()) < 15 * num_removed, "what one costs does not depend on the number of tenants"
        assert "hgetall" not in made


async def test_removed_value_is_gone_and_announced(redis: RedisServer) -> None:
    async with connected(redis) as one, connected(redis) as other:
        heard: list[str] = []
        other.on_removal(heard.append)
        await put(one, "cat", LARGE)
        assert await one.remove(Area.MEDIA, key(one, "cat"), announcement="the cat")
        assert not await one.remove(Area.MEDIA, key(one, "cat"), announcement="the cat")
        assert await get(other, "cat") is None
        assert int(redis.client().hget("glimpse:media-sizes", "total")) == 0
        await until(lambda: "the cat" in heard)


TAMPERED: list[Any] = [
    pytest.param({"0": b"other"}, id="other bytes"),
    pytest.param({"0": b"x" * CHUNK_BYTES}, id="equally many other bytes"),
    pytest.param({"1": b"x" * (CHUNK_BYTES + 1)}, id="too many bytes"),
    pytest.param({"header": b"nonsense"}, id="no header"),
]


@pytest.mark.parametrize("changes", TAMPERED)
async def test_tampered_value_is_refused_and_removed(redis: RedisServer, changes: dict[str, bytes]) -> None:
    outcomes: list[Outcome] = []
    async with connected(redis, observe=outcomes.append) as store:
        await put(store, "cat", LARGE)
        redis.client().hset(key(store, "cat"), mapping=changes)
        assert await get(store, "cat") is None
        assert Outcome.DAMAGED in outcomes
        assert not redis.client().exists(key(store, "cat"))
        await put(store, "cat", LARGE)
        assert await get(store, "cat") == LARGE


async def test_value_that_lost_a_chunk_is_missing(redis: RedisServer) -> None:
    async with connected(redis) as store:
        await put(store, "cat", LARGE)
        redis.client().hdel(key(store, "cat"), "1")
        assert await get(store, "cat") is None


async def test_password_is_needed_and_used(tmp_path: Path) -> None:
    with RedisServer(tmp_path, "--requirepass", "s3cr:t") as server:
        address = f"127.0.0.1:{server.port}"
        for url, works in (
            (server.url, False),
            (f"redis://:wrong@{address}", False),
            (f"redis://:s3cr%3At@{address}/3", True),
        ):
            async with connected(server, url=url) as store:
                assert store.is_available == works


async def test_store_that_became_a_replica_is_unavailable_until_it_takes_writes(
    redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(redis) as store:
        caplog.set_level("WARNING")
        await put(store, "cat")

        async def write_again() -> None:
            await put(store, "dog")

        store.on_reconnect(write_again)
        with redis.client() as client:
            client.replicaof("127.0.0.1", redis.port + 1)
            with pytest.raises(StoreUnavailableError):
                await put(store, "cat")
            await asyncio.sleep(1)  # several attempts to reconnect
            assert not store.is_available
            assert caplog.text.count("is unavailable") == 1
            client.replicaof("NO", "ONE")
        await until(lambda: store.is_available)


async def test_user_of_an_access_list_needs_what_the_documents_say(tmp_path: Path) -> None:
    documented = re.search(r"groups `([@a-z ]+)`, and `TIME`", (ROOT / "docs" / "operations.md").read_text())
    assert documented
    rights = [f"+{group}" for group in documented[1].split()]
    with RedisServer(tmp_path, "--user", "me", "on", ">secret", "~glimpse:*", *rights, "+time") as server:
        async with connected(server, url=f"redis://me:secret@127.0.0.1:{server.port}") as store:
            await put(store, "cat", LARGE)
            assert await get(store, "cat") == LARGE
            assert await store.remove(Area.MEDIA, key(store, "cat"), announcement="the cat")
            await store.purge(f"{TENANT}.")


async def test_tls_is_used_and_its_certificate_is_checked(tmp_path: Path) -> None:
    options = ["--port", "0", "--tls-cert-file", CERTIFICATES / "gateway.pem", "--tls-auth-clients", "no"]
    options += ["--tls-key-file", CERTIFICATES / "gateway.key"]
    with RedisServer(tmp_path, *map(str, options), port_option="--tls-port") as server:
        url = server.url.replace("redis://", "rediss://")
        for ca, works in ((CERTIFICATES / "ca.pem", True), (CERTIFICATES / "stranger.pem", False), (None, False)):
            async with connected(server, url=url, ca=ca) as store:
                assert store.is_available == works
        async with connected(server) as unencrypted:
            assert not unencrypted.is_available


async def test_purge_needs_a_tenant(redis: RedisServer) -> None:
    async with connected(redis) as store:
        for prefix in ("", "a", f"{TENANT[1:]}."):
            with pytest.raises(ValueError, match="expected a prefix"):
                await store.purge(prefix)


async def test_each_server_hears_of_a_purge_once_also_if_it_was_away(redis: RedisServer) -> None:
    first, second = f"{TENANT}.", f"{TENANT[::-1]}."
    async with connected(redis) as one, connected(redis) as other, connected(redis) as away:
        names = {store: dict[str, str]() for store in (one, other, away)}
        for store in (one, other, away):
            store.on_purge(names[store].__setitem__)
        await away.close()
        await asyncio.gather(one.purge(first), other.purge(second))
        assert [sorted(names[store]) for store in (one, other, away)] == [[first, second], [first, second], []]
        await away.start()
        await until(lambda: sorted(names[away]) == [first, second])
        assert names[one] == names[other] == names[away], "all know a purge by one name"
        await one.purge(first)
        assert names[one][first] == names[other][first] != names[away][second]


async def test_purge_reaches_all_after_a_failover_to_a_redis_whose_clock_is_behind(redis: RedisServer) -> None:
    async with connected(redis) as one, connected(redis) as other:
        heard: list[str] = []
        other.on_purge(lambda prefix, _: heard.append(prefix))
        in_an_hour = int(1e6 * (time.time() + 3600))
        redis.client().zadd("glimpse:purges", {"by a Redis whose clock was ahead": in_an_hour})
        await until(lambda: len(heard) == 1)
        await one.purge(f"{TENANT}.")
        assert heard[1:] == [f"{TENANT}."]


async def test_time_of_the_store_rises_also_where_redis_lost_its_clock(redis: RedisServer) -> None:
    async with connected(redis) as one, connected(redis) as other:
        times = [await each.time() for _ in range(3) for each in (one, other)]
        redis.client().hincrby("glimpse:clock", "last", 3_600_000_000)
        times += [await each.time() for _ in range(3) for each in (one, other)]
        assert times[6] - times[5] >= 3_600_000_000, "as by a Redis whose clock was ahead"
        redis.client().flushall()
        times += [await each.time() for each in (other, one)]
        assert times == sorted(set(times))


async def test_what_is_announced_anew_in_the_last_minute_is_heard(redis: RedisServer) -> None:
    """A replica that takes over may lack the last announcement, and announce another one at an earlier time."""
    async with AsyncRedis(port=redis.port) as client:
        announcements = Announcements("heard")
        redis.client().zadd("heard", {"first": 100_000_000, "lost": 102_000_000})
        assert await announcements.read_new(client) == {"first": 100_000_000, "lost": 102_000_000}
        redis.client().zrem("heard", "lost")
        redis.client().zadd("heard", {"new": 101_000_000})
        announcements.rewind()
        assert await announcements.read_new(client) == {"new": 101_000_000}
        assert await announcements.read_new(client) == {}
        redis.client().zadd("heard", {"first": 103_000_000})
        assert await announcements.read_new(client) == {"first": 103_000_000}, "announced again"


async def test_value_does_not_replace_a_later_one(redis: RedisServer) -> None:
    async with connected(redis) as store:
        for order, data, stored in ((5, b"5", b"5"), (4, LARGE, b"5"), (6, b"6", b"6")):
            where = key(store, "cat")
            header = await store.put(Area.MEDIA, where, data, digest=sha256(data).digest(), seconds=60, order=order)
            assert (header is not None) == (stored == data)
            assert await get(store, "cat") == stored
        assert not list(redis.client().scan_iter("*staged*"))


async def test_fails_at_once_without_redis_and_finds_it_again(tmp_path: Path) -> None:
    server, changes = RedisServer(tmp_path), list[bool]()
    try:
        async with connected(server, on_change=changes.append) as store:
            restored = asyncio.Event()

            async def restore() -> None:
                if await get(store, "cat") is None:
                    await put(store, "cat")
                restored.set()

            await put(store, "cat")
            store.on_reconnect(restore)
            server.stop()
            await until(lambda: not store.is_available)
            with pytest.raises(StoreUnavailableError):
                await put(store, "cat")
            server.start()
            await restored.wait()
            assert await get(store, "cat") == DATA
            assert changes == [True, False, True]
    finally:
        server.stop()


async def test_paused_redis_is_given_up_after_the_time_limit(redis: RedisServer) -> None:
    async with connected(redis, command_seconds=0.3) as store:
        await put(store, "cat")
        redis.pause()
        try:
            began = time.monotonic()
            with pytest.raises(StoreUnavailableError):
                await get(store, "cat")
            assert time.monotonic() - began >= 0.2  # it did wait
            await until(lambda: not store.is_available)
            with pytest.raises(StoreUnavailableError):
                await get(store, "cat")
        finally:
            redis.resume()
        await until(lambda: store.is_available)
        assert await get(store, "cat") == DATA


async def test_redis_without_memory_refuses_values_but_stays_available(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with RedisServer(tmp_path, "--maxmemory", "4mb", "--maxmemory-policy", "noeviction") as server:
        async with connected(server) as store:
            await put(store, "cat")
            for _ in range(3):
                with pytest.raises(StoreUnavailableError):
                    await put(store, "dog", LARGE * 4)
            assert caplog.text.count("refuses commands: OutOfMemoryError") == 1
            assert store.is_available
            assert await get(store, "cat") == DATA
