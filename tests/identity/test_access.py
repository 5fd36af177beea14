"""Which tenants a process remembers, where any subject of a valid JWT is one."""

import weakref
from pathlib import Path

import pytest

from glimpse.identity.access import Access
from glimpse.identity.errors import QuotaExceededError
from glimpse.identity.limits import parse_limits
from glimpse.identity.watched_file import WatchedFile
from glimpse.media.cache.memory_budget import MemoryBudget

SUBJECTS = [f"subject-{number}" for number in range(20_000)]


def test_tenants_that_use_nothing_are_forgotten_and_those_that_called_last_are_kept() -> None:
    access, alive = Access(), weakref.WeakSet[object]()
    regular = access.tenant("regular")
    for number, name in enumerate(SUBJECTS):
        alive.add(access.tenant(name))
        if number % 1000 == 0:
            assert access.tenant("regular") is regular
    assert len(alive) < 5000
    assert access.tenant(SUBJECTS[-1]) in alive
    assert access.tenant("regular") is regular


@pytest.mark.asyncio
async def test_what_a_tenant_has_used_outlives_any_number_of_others(tmp_path: Path) -> None:
    file = tmp_path / "tenants"
    file.write_text("[tenant.counted]\nrequests_per_minute = 1\n[tenant.media]\nmax_media_bytes = 100\n")
    access = Access(limits=WatchedFile(file, parse_limits))
    running, counted, media = (access.tenant(name) for name in ("running", "counted", "media"))
    await running.begin_request()
    await counted.begin_request()
    counted.end_request(0)
    with MemoryBudget().reservation(media.media) as reservation:
        reservation.reserve(100)
        for name in SUBJECTS:
            access.tenant(name)
        assert access.tenant("running") is running
        assert access.media_bytes() == {media.namespace_prefix: 100}
    with pytest.raises(QuotaExceededError):
        await access.tenant("counted").begin_request()


def test_a_purge_outlives_its_tenant() -> None:
    access = Access()
    prefix = access.tenant("acme").namespace_prefix
    access.forget_prefixes(prefix, "a1")
    purged = access.tenant("acme").engine_namespace("space")
    for name in SUBJECTS:
        access.tenant(name)
    assert access.tenant("acme").engine_namespace("space") == purged == "space/a1"
