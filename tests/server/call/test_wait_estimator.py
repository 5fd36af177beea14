"""How long a new request would wait: its client's waiting work at the client's share of the measured rate."""

import pytest

from glimpse.server.call.wait_estimator import WaitEstimator


@pytest.fixture
def estimator() -> WaitEstimator:
    return WaitEstimator()


def test_nothing_is_expected_before_the_rate_is_measured(estimator: WaitEstimator):
    estimator.add_waiting("a", 1_000_000)
    assert (estimator.tokens_per_second, estimator.wait_seconds("a")) == (None, 0.0)


def test_client_waits_for_its_own_work_at_its_share_of_the_rate(estimator: WaitEstimator):
    estimator.observe_rate(num_tokens=1000, seconds=2.0)
    estimator.add_waiting("a", 5000)
    assert estimator.tokens_per_second == 500
    assert estimator.wait_seconds("a") == 10.0
    assert estimator.wait_seconds("b") == 0.0, "another client's backlog is no one else's"
    estimator.add_waiting("b", 500)
    assert (estimator.wait_seconds("a"), estimator.wait_seconds("b")) == (20.0, 2.0)
    estimator.add_waiting("a", -5000)
    assert (estimator.wait_seconds("a"), estimator.wait_seconds("b")) == (0.0, 1.0)


def test_recent_rates_count_more(estimator: WaitEstimator):
    for _ in range(100):
        estimator.observe_rate(num_tokens=100, seconds=1.0)
    assert estimator.tokens_per_second == pytest.approx(100)
    for _ in range(60):
        estimator.observe_rate(num_tokens=1000, seconds=1.0)
    assert estimator.tokens_per_second == pytest.approx(1000, rel=0.01)


def test_completions_are_expected_to_be_as_long_as_recent_ones(estimator: WaitEstimator):
    for _ in range(200):
        estimator.observe_completion(30)
    assert estimator.expected_tokens(num_prompt_tokens=10, num_completions=4, max_tokens=4096) == pytest.approx(
        130, 0.1
    )
    assert estimator.expected_tokens(num_prompt_tokens=10, num_completions=4, max_tokens=5) == 30


def test_work_that_waits_in_other_processes_counts(estimator: WaitEstimator):
    estimator.observe_rate(num_tokens=1000, seconds=10.0)
    estimator.set_others({"a": 300, "b": 100})
    assert estimator.wait_seconds("a") == pytest.approx(300 * 2 / 100)
    estimator.add_waiting("a", 100)
    estimator.add_waiting("c", 100)
    assert estimator.wait_seconds("a") == pytest.approx(400 * 3 / 100)
    assert estimator.waiting_tokens == {"a": 100, "c": 100}
    estimator.set_others({})
    assert estimator.wait_seconds("a") == pytest.approx(100 * 2 / 100)
    assert estimator.wait_seconds("b") == 0.0
