"""Limits of tenants: how they are written, and how quotas are counted and grow back."""

import pytest

from glimpse.identity.errors import IdentityConfigError, QuotaExceededError
from glimpse.identity.limits import parse_limits
from glimpse.identity.quota import Quota
from glimpse.identity.tenant import Limits, Tenant
from glimpse.media.cache.memory_budget import MemoryBudget, MemoryShare
from glimpse.media.errors import MediaError
from tests.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


def limited(clock: Clock, **limits: int) -> Tenant:
    tenant = Tenant("acme", clock=clock)
    tenant.set_limits(Limits(**limits))
    return tenant


async def wait(tenant: Tenant) -> float:
    with pytest.raises(QuotaExceededError) as caught:
        await tenant.begin_request()
    return caught.value.retry_after_seconds


def test_tenant_has_the_limits_of_its_section_or_the_default_ones():
    limits = parse_limits('[default]\nmin_priority = 0\n[tenant.acme]\nmax_media_bytes = "1MiB"\n', "tenants")
    assert limits.of("acme") == Limits(max_media_bytes=1 << 20)
    assert limits.of("other") == Limits(min_priority=0)
    assert parse_limits("", "tenants").of("other") == Limits()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[", "'tenants': expected TOML"),
        ("[tenant.acme]\nrequest_per_minute = 1", "'tenants', 'tenant.acme.request_per_minute': expected a known name"),
        ("[tenants]", "'tenants', 'tenants': expected a known name"),
        ("default = 3", "'tenants', 'default': expected a JSON object, got 3"),
        ("[default]\nrequests_per_minute = 0", "expected at least 1, got 0"),
        ('[default]\nmax_media_bytes = "much"', "expected a size such as 512MiB, got 'much'"),
        ('[tenant."a b"]', "expected a tenant's name"),
    ],
)
def test_unusable_file_is_refused_by_name(text: str, expected: str):
    with pytest.raises(IdentityConfigError) as caught:
        parse_limits(text, "tenants")
    assert expected in str(caught.value)


def test_quota_grows_back_steadily_and_not_above_a_minute_s(clock: Clock):
    quota = Quota(clock)
    quota.use(60, 60)
    assert quota.wait_seconds(1, 60) == pytest.approx(1)
    clock.now += 0.75
    assert quota.wait_seconds(1, 60) == pytest.approx(0.25)
    clock.now += 3600
    assert quota.wait_seconds(60, 60) == 0
    quota.use(61, 60)
    assert quota.wait_seconds(1, 60) == pytest.approx(2)


async def test_request_that_is_refused_is_not_counted(clock: Clock):
    tenant = limited(clock, requests_per_minute=2)
    for _ in range(2):
        await tenant.begin_request()
        tenant.end_request(0)
    assert await wait(tenant) == pytest.approx(30)
    assert await wait(tenant) == pytest.approx(30)
    clock.now += 30
    await tenant.begin_request()


async def test_tokens_are_charged_at_the_end_and_may_overdraw(clock: Clock):
    tenant = limited(clock, tokens_per_minute=60)
    await tenant.begin_request()
    await tenant.begin_request()
    tenant.end_request(60)
    tenant.end_request(60)
    assert await wait(tenant) == pytest.approx(61)
    clock.now += 61
    await tenant.begin_request()


async def test_only_so_many_requests_run_at_a_time(clock: Clock):
    tenant = limited(clock, max_concurrent_requests=1)
    await tenant.begin_request()
    assert await wait(tenant) > 0
    tenant.end_request(5)
    await tenant.begin_request()


async def test_changed_limits_forget_nothing(clock: Clock):
    tenant = limited(clock, requests_per_minute=1)
    await tenant.begin_request()
    tenant.set_limits(Limits(requests_per_minute=60))
    await tenant.begin_request()
    tenant.set_limits(Limits(requests_per_minute=1))
    assert await wait(tenant) > 0


def test_media_count_in_the_tenant_s_share_until_they_are_released():
    budget, share = MemoryBudget(max_bytes=100), MemoryShare(50)
    with budget.reservation(share, client="a") as one, budget.reservation(share, client="a") as two:
        one.reserve(20)
        one.reserve_shared(share, 20)
        with pytest.raises(MediaError, match="your tenant"):
            two.reserve(11)
        with budget.reservation(client="b") as other:  # of another tenant
            other.reserve(60)
            with pytest.raises(MediaError, match="server's memory"):
                two.reserve(5)
        assert (share.num_bytes, budget.num_bytes) == (40, 40)
        one.release(20)
        two.reserve(30)
    assert (share.num_bytes, budget.num_bytes) == (0, 0)
