"""Bytes of media in memory: bounded for one request and for all, counted once where they are shared, all given back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glimpse.media.cache.memory_budget import MemoryBudget
from glimpse.media.errors import MediaError, MediaErrorCode


def test_the_budget_of_all_requests_is_bounded() -> None:
    memory_budget = MemoryBudget(max_bytes=100)
    with memory_budget.reservation() as first, memory_budget.reservation() as second:
        first.reserve(60)
        with pytest.raises(MediaError) as caught:
            second.reserve(41)
        assert caught.value.code == MediaErrorCode.OVERLOADED
        second.reserve(40)
    assert memory_budget.num_bytes == 0


def test_one_request_is_bounded_by_itself_and_need_not_try_again() -> None:
    memory_budget = MemoryBudget(max_bytes=100, max_request_bytes=50)
    with memory_budget.reservation() as reservation:
        reservation.reserve(30)
        with pytest.raises(MediaError) as caught:
            reservation.reserve(21)
        assert caught.value.code == MediaErrorCode.TOO_LARGE
        reservation.release(30)
        reservation.reserve(50)


def test_a_shared_object_is_counted_once() -> None:
    memory_budget, image = MemoryBudget(max_bytes=100), object()
    with memory_budget.reservation() as first:
        with memory_budget.reservation() as second:
            first.reserve_shared(image, 70)
            second.reserve_shared(image, 70)
            assert memory_budget.num_bytes == 70
        assert memory_budget.num_bytes == 70
    assert memory_budget.num_bytes == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers(0, 60)), max_size=40))
def test_budgets_are_never_exceeded_and_everything_comes_back(is_enabled: list[tuple[int, bool, int]]) -> None:
    memory_budget = MemoryBudget(max_bytes=100, max_request_bytes=80)
    images = [object() for _ in range(61)]
    holds = [memory_budget.reservation() for _ in range(4)]
    requests = [reservation.__enter__() for reservation in holds]
    for index, is_shared, num_bytes in is_enabled:
        before = memory_budget.num_bytes, requests[index].num_bytes
        try:
            if is_shared:
                requests[index].reserve_shared(images[num_bytes], num_bytes)
            else:
                requests[index].reserve(num_bytes)
        except MediaError:
            assert (memory_budget.num_bytes, requests[index].num_bytes) == before
        assert memory_budget.num_bytes <= 100
        assert all(request.num_bytes <= 80 for request in requests)
    for reservation in holds:
        reservation.__exit__(None, None, None)
    assert memory_budget.num_bytes == 0
