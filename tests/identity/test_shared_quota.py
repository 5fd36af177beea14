"""Servers that count the quotas of tenants together, in a real Redis, and alone while it is away."""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from glimpse.identity import shared_quota
from glimpse.identity.errors import QuotaExceededError
from glimpse.identity.shared_quota import SharedQuotas
from glimpse.identity.tenant import Limits, Tenant
from glimpse.media.shared.address import parse_store_url
from tests.media.shared.redis_server import RedisServer
from tests.paths import ROOT
from tests.waiting import until

FROZEN = 1000.0
"""Time of the servers' own counts: what they count alone never grows back."""


class Server:
    """What a server has of quotas."""

    def __init__(self, url: str, *, prefix: str = "glimpse:", server: str = "") -> None:
        self.available = asyncio.Event()
        self.away = asyncio.Event()
        self.quotas = SharedQuotas(parse_store_url(url), prefix=prefix, server=server, on_change=self._changed)

    def tenant(self, name: str = "acme", **limits: int) -> Tenant:
        tenant = Tenant(name, shared=self.quotas, clock=lambda: FROZEN)
        tenant.set_limits(Limits(**limits))
        return tenant

    def _changed(self, is_available: bool) -> None:
        set_now, cleared = (self.available, self.away) if is_available else (self.away, self.available)
        set_now.set()
        cleared.clear()


@asynccontextmanager
async def serving(url: str, prefix: str = "glimpse:", name: str = "") -> AsyncGenerator[Server]:
    server = Server(url, prefix=prefix, server=name)
    watch = asyncio.create_task(server.quotas.watch())
    try:
        await server.available.wait()
        yield server
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)


@pytest.fixture
async def one(redis: RedisServer) -> AsyncIterator[Server]:
    async with serving(redis.url) as server:
        yield server


@pytest.fixture
async def other(redis: RedisServer) -> AsyncIterator[Server]:
    async with serving(redis.url) as server:
        yield server


async def refusal(tenant: Tenant) -> QuotaExceededError:
    with pytest.raises(QuotaExceededError) as caught:
        await tenant.begin_request()
    return caught.value


async def admitted(tenant: Tenant) -> bool:
    try:
        await tenant.begin_request()
    except QuotaExceededError:
        return False
    return True


async def until_refused(tenant: Tenant) -> None:
    """Waits until tokens are charged that another server counts in the background."""

    async def refused() -> bool:
        return not await admitted(tenant)

    await until(refused)


async def test_requests_of_both_servers_count(one: Server, other: Server):
    here, there = one.tenant(requests_per_minute=3), other.tenant(requests_per_minute=3)
    for tenant in (here, there, here):
        await tenant.begin_request()
    error = await refusal(there)
    assert 0 < error.retry_after_seconds <= 20
    assert (error.reason, "3 requests per minute" in error.message) == ("rate_limit_exceeded", True)
    assert not await admitted(here)
    assert await admitted(other.tenant("another", requests_per_minute=3))


async def test_at_no_time_are_more_admitted_than_the_quota_has(one: Server, other: Server):
    tenants = [server.tenant(requests_per_minute=5) for server in (one, other)]
    assert sum(await asyncio.gather(*(admitted(tenants[index % 2]) for index in range(60)))) == 5


async def test_tokens_charged_by_one_server_hold_back_the_other(one: Server, other: Server):
    here, there = one.tenant(tokens_per_minute=100), other.tenant(tokens_per_minute=100)
    await here.begin_request()
    here.end_request(300)
    await until_refused(there)
    error = await refusal(there)
    assert 100 < error.retry_after_seconds <= 0.6 * 201
    assert "100 tokens per minute" in error.message
    # A request that is refused for its tokens is not counted as a request.
    both = other.tenant(tokens_per_minute=100, requests_per_minute=1)
    assert "tokens" in (await refusal(both)).message
    assert await admitted(other.tenant(requests_per_minute=1))


async def test_quota_grows_back_in_redis(one: Server, redis: RedisServer):
    tenant = one.tenant(requests_per_minute=6000)
    (key,) = await counted(tenant, redis)
    redis.client().hset(key, "requests", 6010)  # 0.1 s and a request ahead
    await until(lambda: admitted(one.tenant(requests_per_minute=6000)))


async def counted(tenant: Tenant, redis: RedisServer) -> list[bytes]:
    await tenant.begin_request()
    return redis.client().keys("glimpse:quota:*")


async def test_what_redis_has_names_no_tenant_and_expires(one: Server, redis: RedisServer):
    (key,) = await counted(one.tenant(requests_per_minute=1, tokens_per_minute=1), redis)
    assert b"acme" not in key
    assert 0 < redis.client().pttl(key) <= 61_000


async def test_servers_of_another_prefix_count_apart(one: Server, redis: RedisServer):
    assert await admitted(one.tenant(requests_per_minute=1))
    async with serving(redis.url, "other:") as apart:
        assert await admitted(apart.tenant(requests_per_minute=1))


async def test_refused_request_is_not_counted_on_the_server_either(one: Server, other: Server, redis: RedisServer):
    here = one.tenant(requests_per_minute=1, max_concurrent_requests=1)
    assert await admitted(other.tenant(requests_per_minute=1))
    assert "requests per minute" in (await refusal(here)).message
    redis.client().flushall()
    assert await admitted(here)


async def test_each_server_counts_alone_while_redis_is_away(one: Server, other: Server, redis: RedisServer):
    here, there = one.tenant(requests_per_minute=2), other.tenant(requests_per_minute=2)
    for tenant in (here, there):
        await tenant.begin_request()
    redis.stop()
    try:
        assert (await admitted(here), await admitted(there)) == (True, True)
        assert (await admitted(here), await admitted(there)) == (False, False)
        await one.away.wait()
    finally:
        redis.start()
    await asyncio.gather(one.available.wait(), other.available.wait())
    third = one.tenant("third", requests_per_minute=1)
    assert await admitted(third)
    assert not await admitted(other.tenant("third", requests_per_minute=1))


async def test_request_that_is_cancelled_meanwhile_is_not_counted_here(one: Server, redis: RedisServer):
    tenant = one.tenant(requests_per_minute=2, max_concurrent_requests=1)
    with paused(redis):
        beginning = asyncio.create_task(tenant.begin_request())
        await asyncio.sleep(0.01)
        beginning.cancel()
        await asyncio.gather(beginning, return_exceptions=True)
        assert beginning.cancelled()
    assert await admitted(tenant)
    tenant.end_request(0)
    assert await admitted(one.tenant("other", requests_per_minute=1))
    assert not await admitted(one.tenant("other", requests_per_minute=1))


async def test_user_of_an_access_list_needs_what_the_documents_say(tmp_path: Path):
    documented = re.search(r"groups `([@a-z ]+)`, and `TIME`", (ROOT / "docs" / "operations.md").read_text())
    assert documented
    rights = [f"+{group}" for group in documented[1].split()]
    with RedisServer(tmp_path, "--user", "me", "on", ">secret", "~glimpse:*", *rights, "+time") as server:
        async with serving(f"redis://me:secret@127.0.0.1:{server.port}") as user:
            assert await admitted(user.tenant(requests_per_minute=1, tokens_per_minute=1))
            assert not await admitted(user.tenant(requests_per_minute=1))


async def test_redis_that_answers_nothing_holds_up_one_request(redis: RedisServer):
    async with serving(redis.url) as server:
        tenant = server.tenant(requests_per_minute=100)
        with paused(redis):
            await asyncio.gather(*(tenant.begin_request() for _ in range(20)))
            assert server.away.is_set()
            with pytest.raises(StopIteration):  # it has ended without waiting for anything
                tenant.begin_request().send(None)


@contextmanager
def paused(redis: RedisServer) -> Generator[None]:
    """Redis accepts connections but answers nothing within the block."""
    redis.pause()
    try:
        yield
    finally:
        redis.resume()


@pytest.fixture
async def front_ends(redis: RedisServer) -> AsyncIterator[tuple[Server, Server]]:
    """Two front ends of one server."""
    async with serving(redis.url, name="a server") as first, serving(redis.url, name="a server") as second:
        yield first, second


def limited(front_ends: tuple[Server, Server], most: int) -> tuple[Tenant, Tenant]:
    """A tenant, limited in its requests in progress, as both front ends know it."""
    first, second = front_ends
    return first.tenant(max_concurrent_requests=most), second.tenant(max_concurrent_requests=most)


async def admitted_soon(tenant: Tenant) -> None:
    """Waits until a request is admitted: others end in the background."""
    while not await admitted(tenant):
        pass


async def test_front_ends_of_a_server_count_requests_in_progress_together(
    front_ends: tuple[Server, Server], one: Server, redis: RedisServer
):
    here, there = limited(front_ends, 2)
    for tenant in (here, there):
        await tenant.begin_request()
    assert "at most 2 requests of your tenant at a time" in str((await refusal(there)).message)
    assert await admitted(one.tenant(max_concurrent_requests=2)), "another server counts its own alone"
    here.end_request(0)
    await admitted_soon(here)
    assert not await admitted(there)
    async with serving(redis.url, name="a server that starts") as other:
        assert await admitted(other.tenant(max_concurrent_requests=1))


async def test_next_request_may_come_before_redis_hears_of_the_end_of_the_last_one(
    front_ends: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
):
    """A client that sends one request after the other, to any front end, never exceeds its limit."""
    monkeypatch.setattr(shared_quota, "_LATE_SECONDS", 1.0)
    here, there = limited(front_ends, 1)
    await here.begin_request()
    following = asyncio.create_task(admitted(there))
    await asyncio.sleep(0.1)
    here.end_request(0)
    assert await following


async def test_requests_of_a_front_end_that_is_gone_soon_count_no_longer(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shared_quota, "LEASE_SECONDS", 0.6)
    async with serving(redis.url, name="a server") as second:
        async with serving(redis.url, name="a server") as first:
            here, there = limited((first, second), 1)
            await here.begin_request()
            await asyncio.sleep(1.2)
            assert not await admitted(there), "it is renewed"
        await admitted_soon(there)


async def test_request_that_is_cancelled_while_it_is_admitted_is_taken_back(front_ends: tuple[Server, Server]):
    here, there = limited(front_ends, 1)
    beginning = asyncio.create_task(here.begin_request())
    await asyncio.sleep(0)
    beginning.cancel()
    await asyncio.wait([beginning])
    assert beginning.cancelled()
    await admitted_soon(there)


async def test_limits_may_come_and_go_while_a_request_runs(front_ends: tuple[Server, Server]):
    here, there = (front_end.tenant() for front_end in front_ends)
    await here.begin_request()
    for tenant in (here, there):
        tenant.set_limits(Limits(max_concurrent_requests=1))
    here.end_request(0)
    await admitted_soon(here)
    here.set_limits(Limits())
    here.end_request(0)
    await admitted_soon(there)
