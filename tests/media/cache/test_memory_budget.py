"""Bytes of media in memory: bounded for one request and for all, counted once where they are shared, all given back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glimpse.media.cache.memory_budget import InFlight
from glimpse.media.errors import MediaError, MediaErrorCode


def test_all_requests_together_are_bounded_and_one_that_comes_too_many_is_sent_away() -> None:
    in_flight = InFlight(max_bytes=100)
    with in_flight.hold() as first, in_flight.hold() as second:
        first.take(60)
        with pytest.raises(MediaError) as caught:
            second.take(41)
        assert caught.value.code == MediaErrorCode.OVERLOADED
        second.take(40)
    assert in_flight.num_bytes == 0


def test_one_request_is_bounded_by_itself_and_need_not_try_again() -> None:
    in_flight = InFlight(max_bytes=100, max_request_bytes=50)
    with in_flight.hold() as hold:
        hold.take(30)
        with pytest.raises(MediaError) as caught:
            hold.take(21)
        assert caught.value.code == MediaErrorCode.TOO_LARGE
        hold.give(30)
        hold.take(50)


def test_a_shared_object_is_counted_once() -> None:
    in_flight, picture = InFlight(max_bytes=100), object()
    with in_flight.hold() as first:
        with in_flight.hold() as second:
            first.take_shared(picture, 70)
            second.take_shared(picture, 70)
            assert in_flight.num_bytes == 70
        assert in_flight.num_bytes == 70
    assert in_flight.num_bytes == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers(0, 60)), max_size=40))
def test_budgets_are_never_exceeded_and_everything_comes_back(takes: list[tuple[int, bool, int]]) -> None:
    in_flight = InFlight(max_bytes=100, max_request_bytes=80)
    pictures = [object() for _ in range(61)]
    holds = [in_flight.hold() for _ in range(4)]
    requests = [hold.__enter__() for hold in holds]
    for index, is_shared, num_bytes in takes:
        before = in_flight.num_bytes, requests[index].num_bytes
        try:
            if is_shared:
                requests[index].take_shared(pictures[num_bytes], num_bytes)
            else:
                requests[index].take(num_bytes)
        except MediaError:
            assert (in_flight.num_bytes, requests[index].num_bytes) == before
        assert in_flight.num_bytes <= 100
        assert all(request.num_bytes <= 80 for request in requests)
    for hold in holds:
        hold.__exit__(None, None, None)
    assert in_flight.num_bytes == 0
