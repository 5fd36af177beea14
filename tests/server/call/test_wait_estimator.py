"""How long a new request would wait, by the waiting work and the measured rate, and how long for its first token."""

import random
from functools import partial

import pytest

from glimpse.server.call.wait_estimator import PromptSize, WaitEstimator

size = partial(PromptSize, num_tokens=100, num_media_tokens=0, num_running=0)


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
    assert estimator.wait_seconds("a") == 11.0, "the other client has no more than that"
    assert estimator.wait_seconds("b") == 2.0, "of the first client's, as much as its own is done before"
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
    assert estimator.wait_seconds("a") == pytest.approx((300 + 100) / 100)
    estimator.add_waiting("a", 100)
    estimator.add_waiting("c", 100)
    assert estimator.wait_seconds("a") == pytest.approx((400 + 100 + 100) / 100)
    assert estimator.waiting_tokens == {"a": 100, "c": 100}
    estimator.set_others({})
    assert estimator.wait_seconds("a") == pytest.approx((100 + 100) / 100)
    assert estimator.wait_seconds("b") == 0.0


def first_token(estimator: WaitEstimator, of: PromptSize, client: str = "a", now: float = 0.0) -> float | None:
    return estimator.first_token_seconds(client, of, now, has_media=False)


def measured(of: PromptSize) -> float:
    steps = 1 + of.num_tokens / 100
    return 0.02 + 0.001 * of.num_tokens + 0.005 * of.num_running * steps


def test_no_first_token_is_expected_before_a_prompt_was_measured(estimator: WaitEstimator) -> None:
    assert first_token(estimator, size()) is None
    estimator.observe_prompt(size(), seconds=0.2, encode_seconds=0)
    assert first_token(estimator, size()) == pytest.approx(0.2, rel=0.01)
    assert first_token(estimator, size(num_media_tokens=5)) is None


def test_finds_the_times_of_tokens_and_of_running_sequences(estimator: WaitEstimator) -> None:
    draw = random.Random(0)
    for number in range(200):
        drawn = size(num_tokens=draw.randint(1, 2000), num_running=draw.randint(0, 16))
        late = 50 if number % 20 == 0 else 1
        estimator.observe_prompt(drawn, seconds=late * measured(drawn) * draw.uniform(0.9, 1.1), encode_seconds=0)
    for num_tokens, num_running in ((10, 0), (10, 16), (500, 0), (2000, 8)):
        asked = size(num_tokens=num_tokens, num_running=num_running)
        assert first_token(estimator, asked) == pytest.approx(measured(asked), rel=0.3)


def test_equal_prompts_are_enough_for_their_like(estimator: WaitEstimator) -> None:
    for _ in range(10):
        estimator.observe_prompt(size(num_running=2), seconds=0.3, encode_seconds=0)
    assert first_token(estimator, size(num_running=2)) == pytest.approx(0.3, rel=0.01)


def test_media_that_are_encoded_add_to_it(estimator: WaitEstimator) -> None:
    for num_media_tokens, seconds in ((50, 9.0), *((count, 0.1 + count / 500) for count in (20, 80, 50, 30, 70, 60))):
        of = size(num_media_tokens=num_media_tokens)
        estimator.observe_prompt(of, seconds=0.2 + seconds, encode_seconds=seconds)
    assert first_token(estimator, size(num_media_tokens=40)) == pytest.approx(0.2 + 0.18, rel=0.15)
    assert first_token(estimator, size()) == pytest.approx(0.2, rel=0.01), "media tell what the rest takes"


def test_preparation_with_media_is_apart(estimator: WaitEstimator) -> None:
    estimator.observe_prompt(size(), seconds=0.2, encode_seconds=0)
    estimator.observe_preparation(0.05, has_media=True)
    assert estimator.first_token_seconds("a", size(), 0.0, has_media=True) == pytest.approx(0.25, rel=0.01)
    assert first_token(estimator, size()) == pytest.approx(0.2, rel=0.01)


def test_a_request_waits_for_the_prompts_before_it(estimator: WaitEstimator) -> None:
    estimator.observe_prompt(size(), seconds=0.2, encode_seconds=0)
    for name in ("first", "second"):
        estimator.begin_prompt(name, "a", size(), 10.0)
    assert first_token(estimator, size(), now=10.1) == pytest.approx(0.3 + 0.2, rel=0.01)
    assert first_token(estimator, size(), now=99.0) == pytest.approx(0.2, rel=0.01)
    assert estimator.end_prompt("first", 10.2) == pytest.approx(0.2)
    assert first_token(estimator, size(), now=10.3) == pytest.approx(0.1 + 0.2, rel=0.01)
    assert estimator.end_prompt("second", 10.4) == pytest.approx(0.2)
    assert first_token(estimator, size(), now=10.4) == pytest.approx(0.2, rel=0.01)


def test_another_client_s_prompts_take_no_more_than_its_share(estimator: WaitEstimator) -> None:
    estimator.observe_prompt(size(), seconds=0.2, encode_seconds=0)
    for name in range(5):
        estimator.begin_prompt(name, "busy", size(), 10.0)
    estimator.begin_prompt("own", "a", size(), 10.0)
    assert first_token(estimator, size(), "a", 10.0) == pytest.approx(0.2 + 0.4 + 0.2, rel=0.01)
    assert first_token(estimator, size(), "new", 10.0) == pytest.approx(0.2 + 0.2 + 0.2, rel=0.01)


def test_a_change_of_speed_is_followed(estimator: WaitEstimator) -> None:
    for seconds in (0.1, 1.0, 0.1):
        for _ in range(40):
            estimator.observe_prompt(size(), seconds=seconds, encode_seconds=0)
        assert first_token(estimator, size()) == pytest.approx(seconds, rel=0.1)
