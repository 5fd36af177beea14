"""A budget of bytes that is never exceeded, a time that ends, and an order of use."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glimpse.media.cache.lru import Lru


class Clock:
    """A time that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_the_longest_unused_gives_way() -> None:
    kept = Lru[str, int](max_bytes=30)
    for key, value in (("a", 1), ("b", 2), ("c", 3)):
        assert kept.put(key, value, num_bytes=10)
    assert kept.get("a") == 1
    assert kept.put("d", 4, num_bytes=15)
    assert [kept.get(key) for key in "abcd"] == [1, None, None, 4]


def test_what_is_larger_than_everything_is_not_kept() -> None:
    kept = Lru[str, int](max_bytes=10)
    assert kept.put("a", 1, num_bytes=10)
    assert not kept.put("b", 2, num_bytes=11)
    assert (kept.get("a"), kept.get("b")) == (1, None)
    assert not kept.put("a", 3, num_bytes=11)
    assert (kept.get("a"), kept.num_bytes) == (None, 0)


def test_nothing_is_had_after_its_time(clock: Clock) -> None:
    kept = Lru[str, int](max_bytes=10, clock=clock)
    kept.put("a", 1, num_bytes=1, seconds=5)
    kept.put("b", 2, num_bytes=1)
    assert not kept.put("c", 3, num_bytes=1, seconds=0)
    clock.now = 4.9
    assert kept.get("a") == 1
    clock.now = 5
    assert (kept.get("a"), kept.get("b"), kept.num_bytes) == (None, 2, 1)


def test_expired_values_can_be_freed_without_being_asked_for(clock: Clock) -> None:
    kept = Lru[str, int](max_bytes=10, clock=clock)
    kept.put("a", 1, num_bytes=3, seconds=5)
    kept.put("b", 2, num_bytes=4, seconds=6)
    clock.now = 5
    kept.drop_expired()
    assert (len(kept), kept.num_bytes) == (1, 4)


ACTIONS = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 5), st.integers(0, 40), st.sampled_from([1.0, 3.0, float("inf")])),
    st.tuples(st.just("get"), st.integers(0, 5)),
    st.tuples(st.just("drop"), st.integers(0, 5)),
    st.tuples(st.just("wait"), st.integers(0, 2)),
)


@given(st.lists(ACTIONS, max_size=60))
def test_the_budget_holds_and_values_are_the_last_ones_put(actions: list[tuple[object, ...]]) -> None:
    clock = Clock()
    kept = Lru[int, int](max_bytes=100, clock=clock)
    newest: dict[int, tuple[int, int, float]] = {}  # value, bytes, end
    for number, action in enumerate(actions):
        match action:
            case ("put", int(key), int(num_bytes), float(seconds)):
                assert kept.put(key, number, num_bytes=num_bytes, seconds=seconds)
                newest[key] = (number, num_bytes, clock.now + seconds)
            case ("get", int(key)):
                value = kept.get(key)
                assert value is None or (value == newest[key][0] and clock.now < newest[key][2])
            case ("drop", int(key)):
                kept.drop(key)
                assert kept.get(key) is None
            case ("wait", int(seconds)):
                clock.now += seconds
            case _:
                raise AssertionError(action)
        assert 0 <= kept.num_bytes <= 100
    alive = [key for key in range(6) if kept.get(key) is not None]
    kept.drop_expired()
    assert kept.num_bytes == sum(newest[key][1] for key in alive)
