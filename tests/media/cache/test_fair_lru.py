"""The cache of several owners: who loses what, and what no one loses."""

from hypothesis import given
from hypothesis import strategies as st

from glimpse.media.cache.fair_lru import FairLru
from tests.media.caching import Clock

MAX_BYTES = 300
OWNERS = "abc"
PUTS = st.lists(st.tuples(st.sampled_from(OWNERS), st.integers(1, MAX_BYTES // len(OWNERS))), max_size=60)


def make_cache(clock: Clock | None = None) -> FairLru[str, int]:
    return FairLru[str, int](max_bytes=MAX_BYTES, owner=lambda key: key[0], clock=clock or Clock())


def fill(cache: FairLru[str, int], keys: list[str], num_bytes: int = 100, **limits: float) -> None:
    for key in keys:
        assert cache.put(key, 1, num_bytes=num_bytes, **limits)


def found(cache: FairLru[str, int], keys: list[str]) -> list[bool]:
    return [cache.get(key) is not None for key in keys]


def test_owner_that_has_most_loses_its_least_recently_used() -> None:
    cache = make_cache()
    fill(cache, ["b1", "a1", "a2"])
    assert cache.get("a1")
    fill(cache, ["c1"])
    assert found(cache, ["a1", "a2", "b1", "c1"]) == [True, False, True, True]


def test_own_limit_concerns_no_other_owner() -> None:
    cache = make_cache()
    fill(cache, ["b1"])
    fill(cache, ["a1", "a2"], max_own_bytes=100)
    assert found(cache, ["a1", "a2", "b1"]) == [False, True, True]
    assert not cache.put("a3", 1, num_bytes=101, max_own_bytes=100)
    assert not cache.put("a3", 1, num_bytes=MAX_BYTES + 1)
    assert found(cache, ["a2", "b1"]) == [True, True]


def test_newcomer_takes_from_whom_has_most() -> None:
    cache = make_cache()
    fill(cache, ["a1", "b1", "b2"])
    fill(cache, ["c1"])
    assert found(cache, ["a1", "b1", "b2", "c1"]) == [True, False, True, True]


@given(PUTS)
def test_owner_within_an_equal_share_loses_nothing(puts: list[tuple[str, int]]) -> None:
    cache = make_cache()
    mine: list[str] = []
    my_bytes = 0
    for index, (owner, num_bytes) in enumerate(puts):
        if owner == "a" and my_bytes + num_bytes > MAX_BYTES // len(OWNERS):
            continue
        key = f"{owner}{index}"
        fill(cache, [key], num_bytes)
        assert cache.get(key)
        if owner == "a":
            my_bytes += num_bytes
            mine.append(key)
        assert cache.num_bytes <= MAX_BYTES
        assert all(found(cache, mine))


def test_dropped_and_expired_entries_leave_nothing_behind() -> None:
    clock = Clock()
    cache = make_cache(clock)
    fill(cache, ["a1", "b1", "c1"], seconds=5)
    assert cache.drop("a1")
    assert not cache.drop("a1")
    cache.drop_where(lambda key: key == "b1")
    clock.now += 6
    assert cache.list_keys() == ["c1"]
    cache.drop_expired()
    assert (cache.list_keys(), cache.num_bytes) == ([], 0)
