"""The cache of several owners: who loses what, and what no one loses."""

import math

from hypothesis import given
from hypothesis import strategies as st

from glimpse.media.cache.fair_lru import FairLru
from tests.clock import Clock

MAX_BYTES = 300
OWNERS = "abc"
PUTS = st.lists(st.tuples(st.sampled_from(OWNERS), st.integers(1, MAX_BYTES // len(OWNERS))), max_size=60)


def make_cache(clock: Clock | None = None) -> FairLru[str, int]:
    return FairLru[str, int](max_bytes=MAX_BYTES, owner=lambda key: key[0], clock=clock or Clock(1000.0))


def fill(
    cache: FairLru[str, int],
    keys: list[str],
    num_bytes: int = 100,
    *,
    seconds: float = math.inf,
    max_own_bytes: float = math.inf,
) -> None:
    for key in keys:
        assert cache.put(key, 1, num_bytes=num_bytes, seconds=seconds, max_own_bytes=max_own_bytes)


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
    clock = Clock(1000.0)
    cache = make_cache(clock)
    fill(cache, ["a1", "b1", "c1"], seconds=5)
    assert cache.drop("a1")
    assert not cache.drop("a1")
    cache.drop_where(lambda key: key == "b1")
    clock.now += 6
    assert cache.list_keys() == ["c1"]
    cache.drop_expired()
    assert (cache.list_keys(), cache.num_bytes) == ([], 0)


class Counted(int):
    """An owner that counts how often any of them is looked at."""

    looks = 0

    def __hash__(self) -> int:
        Counted.looks += 1
        return super().__hash__()

    __eq__ = int.__eq__


def looks(num_owners: int, num_puts: int, *, seconds: float = 1e6) -> int:
    """How often owners are looked at by so many puts into a full cache, each of which makes another one leave."""
    owners = [Counted(number) for number in range(num_owners)]
    clock = Clock(1000.0)
    cache = FairLru[tuple[Counted, int], int](max_bytes=num_owners, owner=lambda key: key[0], clock=clock)
    for owner in owners:
        assert cache.put((owner, 0), 1, num_bytes=1, seconds=seconds)
    Counted.looks = 0
    for number in range(num_puts):
        cache.drop_expired()
        assert cache.put((owners[number % num_owners], number + 1), 1, num_bytes=1, seconds=seconds)
        assert cache.num_bytes == num_owners
    return Counted.looks


def test_what_leaves_costs_no_more_among_many_owners() -> None:
    assert looks(2000, 100) <= 2 * looks(20, 100)


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 3), st.integers(1, 60), st.integers(1, 9))))
def test_whoever_has_most_loses_first(puts: list[tuple[str, int, int, int]]) -> None:
    clock = Clock(1000.0)
    cache = make_cache(clock)
    for owner, number, num_bytes, seconds in puts:
        clock.now += 1
        cache.drop_expired()
        cache.drop(f"{owner}{number}")
        before = {each: cache._by_owner[each].num_bytes for each in cache._by_owner}  # pyright: ignore[reportPrivateUsage]
        fill(cache, [f"{owner}{number}"], num_bytes, seconds=seconds)
        after = {each: cache._by_owner[each].num_bytes for each in cache._by_owner}  # pyright: ignore[reportPrivateUsage]
        assert sum(after.values()) == cache.num_bytes <= MAX_BYTES
        before[str(owner)] = before.get(owner, 0) + num_bytes
        losers = [each for each in before if after.get(each, 0) < before[each]]
        assert all(before[loser] >= max(after.values()) for loser in losers)
    clock.now += 10
    cache.drop_expired()
    assert (cache.list_keys(), cache.num_bytes) == ([], 0)


def test_entries_that_left_take_no_memory() -> None:
    cache = make_cache()
    for number in range(1000):
        fill(cache, [f"a{number % 3}"], seconds=5)
    heaps = (cache._sizes, cache._expiries)  # pyright: ignore[reportPrivateUsage]
    assert max(len(heap._heap) for heap in heaps) < 100  # pyright: ignore[reportPrivateUsage]
