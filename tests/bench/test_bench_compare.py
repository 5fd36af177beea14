"""Rounds of a comparison."""

from collections.abc import Iterator

import pytest

from bench.serving.compare import rotated, rounds_within
from bench.serving.comparison import case_options


def test_each_target_is_first_in_turn() -> None:
    assert [rotated("abc", count) for count in range(4)] == [list("abc"), list("bca"), list("cab"), list("abc")]


def _clock(durations: list[float]) -> Iterator[float]:
    """Yields when the first round begins and when each one ends."""
    now = 100.0
    yield now
    for duration in durations:
        now += duration
        yield now


@pytest.mark.parametrize(
    ("seconds", "durations", "expected"),
    [
        (100, [10, 10, 10], 4),
        (35, [10, 10, 10], 3),  # A fourth would end at 40.
        (35, [10, 15, 10], 2),  # A third could take 15 again.
        (5, [10], 1),
    ],
)
def test_rounds_end_when_another_would_not_fit(seconds: float, durations: list[float], expected: int) -> None:
    times = _clock(durations)
    assert list(rounds_within(4, seconds, lambda: next(times, 0.0))) == list(range(expected))


def test_a_share_of_the_sessions_is_at_least_what_runs_at_a_time() -> None:
    assert "--sessions=2" in case_options("text, 1 at a time", sessions_share=0.5)
    assert "--sessions=16" in case_options("text, 16 at a time", sessions_share=0.1)
    assert "--sessions=1" in case_options("chat of six turns", sessions_share=0.1)


def test_a_share_changes_nothing_else() -> None:
    text = case_options("text, 4 at a time", sessions_share=1)
    assert text == ["--workload=text", "--concurrency=4", "--sessions=8"]
    streams = "long prompt beside 4 streams"
    assert case_options(streams, sessions_share=0.5) == case_options(streams, sessions_share=1)
