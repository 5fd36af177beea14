"""What several processes of one server tell each other of tenants: purges, and memory of media."""

from pathlib import Path

import pytest

from glimpse.identity.access import Access
from glimpse.identity.limits import parse_limits
from glimpse.identity.watched_file import WatchedFile
from glimpse.media.cache.memory_budget import MemoryBudget
from glimpse.media.errors import MediaError


@pytest.fixture
def limited(tmp_path: Path) -> Access:
    """One of several processes: the tenant acme may have 100 bytes of media."""
    file = tmp_path / "tenants"
    file.write_text("[tenant.acme]\nmax_media_bytes = 100\n")
    return Access(limits=WatchedFile(file, parse_limits))


def engine_namespace(access: Access, tenant: str) -> str:
    return access.tenant(tenant).engine_namespace(access.tenant(tenant).namespace("salt"))


def test_process_that_starts_after_a_purge_has_the_names_of_the_others() -> None:
    before = engine_namespace(Access(), "acme")
    prefix = Access().tenant("acme").namespace_prefix
    early, late = Access(), Access()
    assert engine_namespace(early, "acme") == before
    for access in (early, late):
        access.forget_prefixes(prefix, "a1")
    assert engine_namespace(early, "acme") == engine_namespace(late, "acme") != before
    assert engine_namespace(early, "other") == engine_namespace(Access(), "other"), "purges concern one tenant"


def test_purge_of_a_tenant_that_has_not_called_yet_is_remembered() -> None:
    access, other = Access(), Access()
    prefix = Access().tenant("acme").namespace_prefix
    access.forget_prefixes(prefix, "a1")
    other.tenant("acme")
    for each in (access, other):
        each.forget_prefixes(prefix, "b2")
    assert engine_namespace(access, "acme") == engine_namespace(other, "acme")


def test_purges_without_a_name_never_repeat_one() -> None:
    """Else a process that starts again would use caches of before an earlier purge."""
    names: set[str] = set()
    for _ in range(2):
        access = Access()
        for _ in range(10):
            access.forget_prefixes(access.tenant("acme").namespace_prefix)
            names.add(engine_namespace(access, "acme"))
    assert len(names) == 20


def test_media_in_other_processes_count_against_a_tenants_limit(limited: Access) -> None:
    acme, budget = limited.tenant("acme"), MemoryBudget()
    limited.set_media_of_others({acme.namespace_prefix: 70})
    with budget.reservation(acme.media) as media:
        media.reserve(30)
        with pytest.raises(MediaError, match="limit, 100 bytes"):
            media.reserve(1)
        assert limited.media_bytes() == {acme.namespace_prefix: 30}, "its own alone"
        limited.set_media_of_others({})
        media.reserve(70)
    assert limited.media_bytes() == {}


def test_media_of_others_of_a_tenant_that_has_not_called_yet_are_remembered(limited: Access) -> None:
    limited.set_media_of_others({Access().tenant("acme").namespace_prefix: 100})
    with MemoryBudget().reservation(limited.tenant("acme").media) as media, pytest.raises(MediaError):
        media.reserve(1)


def test_media_of_tenants_without_a_limit_are_not_told(limited: Access) -> None:
    with MemoryBudget().reservation(limited.tenant("other").media) as media:
        media.reserve(1000)
        assert limited.media_bytes() == {}
