"""The curve of what steps take by their tokens."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glimpse.engine.core.step_curve import STALE_AGE, StepCurve


def curve_after(*steps: tuple[int, float], curve: StepCurve | None = None) -> StepCurve:
    curve = curve or StepCurve()
    for num_tokens, seconds in steps:
        curve.observe(num_tokens, seconds)
    return curve


@given(steps=st.lists(st.tuples(st.integers(1, 3000), st.floats(0.001, 100))), seconds=st.floats(0, 1000))
def test_steps_are_sized_by_what_they_take(steps: list[tuple[int, float]], seconds: float):
    curve = curve_after(*steps)
    times = [curve.seconds(num_tokens) for num_tokens in range(0, 3000, 7)]
    assert all(more >= less * (1 - 1e-9) for less, more in pairwise(times)), "more tokens never take less"
    within = curve.num_tokens_within(seconds)
    assert curve.seconds(within) <= seconds * (1 + 1e-9)
    assert within <= 2 * max((num_tokens for num_tokens, _ in steps), default=0)


def test_stale_sizes_follow_newer_ones_that_contradict_them():
    larger, smaller = (1000, 2.0), (1, 0.5)
    assert curve_after(larger, (1, 9.0)).seconds(1) == 2.0, "it was delayed"
    slower = curve_after(larger, *[(1, 9.0)] * STALE_AGE)
    assert (slower.seconds(1), slower.seconds(1000)) == (9.0, 9.0)
    faster = curve_after(smaller, *[(1000, 0.1)] * STALE_AGE)
    assert (faster.seconds(1), faster.seconds(1000)) == (0.1, 0.1)
    agreeing = curve_after(larger, *[smaller] * STALE_AGE)
    assert (agreeing.seconds(1), agreeing.seconds(1000)) == (0.5, 2.0), "they count where nothing contradicts them"


def test_which_step_of_a_size_counts():
    times = [(4, 3.0), (5, 1.0), (6, 2.0), (7, 9.0), (4, 2.5)]
    assert curve_after(*times).line == pytest.approx((0.0, 2.5 / 4))
    assert curve_after(*times, curve=StepCurve(rank=0.0)).line == pytest.approx((0.0, 1.0 / 5))


def test_line_goes_through_the_smallest_and_the_largest_steps():
    assert StepCurve().line == (0.0, 0.0)
    assert curve_after((4, 3.0), (12, 3.1), (104, 5.0)).line == pytest.approx((3.0 - 4 * 0.02, 0.02))


def test_steps_without_tokens_are_measured_too():
    assert curve_after((4, 3.0)).seconds(0) == 0.0
    assert curve_after((4, 3.0), (0, 1.0)).seconds(2) == 2.0
