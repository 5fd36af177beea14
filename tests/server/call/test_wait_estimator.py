"""How long a new request would wait, by the work that waits and what the engine foresees, and for its first token."""

from functools import partial

import pytest
from msgspec.structs import replace

from glimpse.engine.protocol.messages import RequestStats
from glimpse.server.call.wait_estimator import PromptSize, WaitEstimator
from tests.server.services.step_stats import stats

size = partial(PromptSize, num_tokens=100, num_media_tokens=0)


@pytest.fixture
def estimator() -> WaitEstimator:
    return WaitEstimator()


def test_nothing_is_expected_before_the_engine_foresees_it(estimator: WaitEstimator):
    estimator.add_waiting("a", 1_000_000)
    assert estimator.wait_seconds("a") == 0.0
    estimator.engine_stepped(stats(running=1))
    assert estimator.wait_seconds("a") == 0.0


def test_client_waits_for_its_own_work_at_its_share_of_the_rate(estimator: WaitEstimator):
    estimator.engine_stepped(stats(running=1, waiting=1, token_seconds=1 / 500))
    estimator.add_waiting("a", 5000)
    assert estimator.wait_seconds("a") == 10.0
    assert estimator.wait_seconds("b") == 0.0, "another client's backlog is no one else's"
    estimator.add_waiting("b", 500)
    assert estimator.wait_seconds("a") == 11.0, "the other client has no more than that"
    assert estimator.wait_seconds("b") == 2.0, "of the first client's, as much as its own is done before"
    estimator.add_waiting("a", -5000)
    assert (estimator.wait_seconds("a"), estimator.wait_seconds("b")) == (0.0, 1.0)


def test_the_last_forecast_counts(estimator: WaitEstimator):
    estimator.add_waiting("a", 1000)
    for token_seconds, seconds in ((0.01, 10.0), (0.001, 1.0), (0.0, 1.0)):
        estimator.engine_stepped(stats(running=1, token_seconds=token_seconds))
        assert estimator.wait_seconds("a") == pytest.approx(seconds)


def test_a_place_is_waited_for_once_and_forgotten_when_none_is_waited_for(estimator: WaitEstimator):
    estimator.engine_stepped(replace(stats(running=1, waiting=1, token_seconds=0.01), place_seconds=25.0))
    assert estimator.wait_seconds("a") == 0.0
    for num_tokens, seconds in ((10, 25.1), (1000, 35.1)):
        estimator.add_waiting("a", num_tokens)
        assert estimator.wait_seconds("a") == pytest.approx(seconds)
        assert estimator.wait_seconds("a", computing_seconds=20.0) == pytest.approx(seconds - 20.0)
    estimator.engine_stepped(stats(running=1))
    assert estimator.wait_seconds("a") == pytest.approx(10.1)


def test_completions_are_expected_to_be_as_long_as_recent_ones(estimator: WaitEstimator):
    estimator.engine_stepped(replace(stats(running=1), answer_tokens=30.0))
    assert estimator.expected_tokens(num_prompt_tokens=10, num_completions=4, max_tokens=4096) == 130
    assert estimator.expected_tokens(num_prompt_tokens=10, num_completions=4, max_tokens=5) == 30


def test_work_that_waits_in_other_processes_counts(estimator: WaitEstimator):
    estimator.engine_stepped(stats(running=1, waiting=1, token_seconds=1 / 100))
    estimator.set_others({"a": 300, "b": 100})
    assert estimator.wait_seconds("a") == pytest.approx((300 + 100) / 100)
    estimator.add_waiting("a", 100)
    estimator.add_waiting("c", 100)
    assert estimator.wait_seconds("a") == pytest.approx((400 + 100 + 100) / 100)
    assert estimator.waiting_tokens == {"a": 100, "c": 100}
    estimator.set_others({})
    assert estimator.wait_seconds("a") == pytest.approx((100 + 100) / 100)
    assert estimator.wait_seconds("b") == 0.0


def test_a_first_token_comes_after_preparation_the_engine_and_the_ways_between(estimator: WaitEstimator) -> None:
    foreseen = RequestStats(queue_seconds=0.1, encode_seconds=0.2, first_token_seconds=0.7)
    for num_tokens in (100, 200, 400, 800):
        estimator.observe_preparation(size(num_tokens=num_tokens), 0.01 + num_tokens / 10_000)
        for step_seconds in (0.0, 0.04):
            estimator.observe_delivery(0.005 + step_seconds / 2, step_seconds=step_seconds)
    expected = estimator.first_token(size(num_tokens=300), foreseen, step_seconds=0.02)
    assert expected is not None
    assert expected.preparation_seconds == pytest.approx(0.04, rel=0.05)
    assert (expected.queue_seconds, expected.encode_seconds) == (0.1, 0.2)
    assert expected.prefill_seconds == pytest.approx(0.4 + 0.015, rel=0.05)
    assert expected.seconds == pytest.approx(0.04 + 0.7 + 0.015, rel=0.05)


def test_no_first_token_is_expected_that_the_engine_does_not_foresee(estimator: WaitEstimator) -> None:
    assert estimator.first_token(size(), RequestStats(), step_seconds=0.0) is None


def test_preparation_with_media_is_apart(estimator: WaitEstimator) -> None:
    foreseen = RequestStats(first_token_seconds=1.0)
    estimator.observe_preparation(size(), 0.01)
    estimator.observe_preparation(size(num_media_tokens=50), 0.05)
    for num_media_tokens, seconds in ((0, 0.01), (50, 0.05)):
        expected = estimator.first_token(size(num_media_tokens=num_media_tokens), foreseen, step_seconds=0.0)
        assert expected is not None
        assert expected.preparation_seconds == pytest.approx(seconds, rel=0.05)
