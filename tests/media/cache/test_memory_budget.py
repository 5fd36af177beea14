"""The memory budget of media: limits for one and for all requests, shared objects, and release."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glimpse.media.cache.memory_budget import MemoryBudget
from glimpse.media.errors import MediaError, MediaErrorCode


def test_limits_the_total_of_all_requests() -> None:
    memory_budget = MemoryBudget(max_bytes=100)
    with memory_budget.reservation(client="a") as first, memory_budget.reservation(client="b") as second:
        first.reserve(60)
        with pytest.raises(MediaError) as caught:
            second.reserve(41)
        assert caught.value.code == MediaErrorCode.OVERLOADED
        second.reserve(40)
    assert memory_budget.num_bytes == 0


def test_limits_each_request_with_a_permanent_error() -> None:
    memory_budget = MemoryBudget(max_bytes=100, max_request_bytes=50)
    with memory_budget.reservation() as reservation:
        reservation.reserve(30)
        with pytest.raises(MediaError) as caught:
            reservation.reserve(21)
        assert caught.value.code == MediaErrorCode.TOO_LARGE
        reservation.release(30)
        reservation.reserve(50)


def test_counts_a_shared_object_once() -> None:
    memory_budget, image = MemoryBudget(max_bytes=100), object()
    with memory_budget.reservation() as first:
        with memory_budget.reservation() as second:
            first.reserve_shared(image, 70)
            second.reserve_shared(image, 70)
            assert memory_budget.num_bytes == 70
        assert memory_budget.num_bytes == 70
    assert memory_budget.num_bytes == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers(0, 60)), max_size=40))
def test_never_exceeds_the_budgets_and_releases_everything(reservations: list[tuple[int, bool, int]]) -> None:
    memory_budget = MemoryBudget(max_bytes=100, max_request_bytes=80)
    images = [object() for _ in range(61)]
    contexts = [memory_budget.reservation(client="ab"[index % 2]) for index in range(4)]
    requests = [context.__enter__() for context in contexts]
    for index, is_shared, num_bytes in reservations:
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
    for context in contexts:
        context.__exit__(None, None, None)
    assert memory_budget.num_bytes == 0
