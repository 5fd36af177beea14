"""The LRU cache: byte budget, expiry, and order of eviction."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glimpse.media.cache.lru import Lru
from tests.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_evicts_the_least_recently_used() -> None:
    cache = Lru[str, int](max_bytes=30)
    for key, value in (("a", 1), ("b", 2), ("c", 3)):
        assert cache.put(key, value, num_bytes=10)
    assert cache.get("a") == 1
    assert cache.put("d", 4, num_bytes=15)
    assert [cache.get(key) for key in "abcd"] == [1, None, None, 4]


def test_does_not_cache_values_larger_than_the_cache() -> None:
    cache = Lru[str, int](max_bytes=10)
    assert cache.put("a", 1, num_bytes=10)
    assert not cache.put("b", 2, num_bytes=11)
    assert (cache.get("a"), cache.get("b")) == (1, None)
    assert not cache.put("a", 3, num_bytes=11)
    assert (cache.get("a"), cache.num_bytes) == (None, 0)


def test_values_expire(clock: Clock) -> None:
    cache = Lru[str, int](max_bytes=10, clock=clock)
    cache.put("a", 1, num_bytes=1, seconds=5)
    cache.put("b", 2, num_bytes=1)
    assert not cache.put("c", 3, num_bytes=1, seconds=0)
    clock.now = 4.9
    assert cache.get("a") == 1
    clock.now = 5
    assert (cache.get("a"), cache.get("b"), cache.num_bytes) == (None, 2, 1)


def test_drop_if_expired_frees_an_expired_value_alone(clock: Clock) -> None:
    cache = Lru[str, int](max_bytes=10, clock=clock)
    cache.put("a", 1, num_bytes=3, seconds=5)
    cache.put("b", 2, num_bytes=4, seconds=6)
    cache.put("c", 2, num_bytes=1)
    assert cache.list_expiries() == [(5, "a"), (6, "b")]
    clock.now = 5
    for key in "abcd":
        cache.drop_if_expired(key)
    assert (cache.list_keys(), cache.num_bytes) == (["b", "c"], 5)


ACTIONS = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 5), st.integers(0, 40), st.sampled_from([1.0, 3.0, float("inf")])),
    st.tuples(st.just("get"), st.integers(0, 5)),
    st.tuples(st.just("drop"), st.integers(0, 5)),
    st.tuples(st.just("wait"), st.integers(0, 2)),
)


@given(st.lists(ACTIONS, max_size=60))
def test_stays_within_its_budget_and_returns_the_newest_values(actions: list[tuple[object, ...]]) -> None:
    clock = Clock()
    cache = Lru[int, int](max_bytes=100, clock=clock)
    newest: dict[int, tuple[int, int, float]] = {}  # value, bytes, expiry
    for number, action in enumerate(actions):
        match action:
            case ("put", int(key), int(num_bytes), float(seconds)):
                assert cache.put(key, number, num_bytes=num_bytes, seconds=seconds)
                newest[key] = (number, num_bytes, clock.now + seconds)
            case ("get", int(key)):
                value = cache.get(key)
                assert value is None or (value == newest[key][0] and clock.now < newest[key][2])
            case ("drop", int(key)):
                cache.drop(key)
                assert cache.get(key) is None
            case ("wait", int(seconds)):
                clock.now += seconds
            case _:
                raise AssertionError(action)
        assert 0 <= cache.num_bytes <= 100
    alive = [key for key in range(6) if cache.get(key) is not None]  # looked up, so that none is left expired
    assert cache.num_bytes == sum(newest[key][1] for key in alive)
