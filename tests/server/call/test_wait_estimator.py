"""How long a new request would wait, by the waiting work and the measured rate, and how long for its first token."""

import random
from functools import partial

import pytest

from glimpse.server.call.wait_estimator import PromptSize, WaitEstimator

size = partial(PromptSize, num_tokens=100, num_media_tokens=0)


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


def first_token(
    estimator: WaitEstimator, of: PromptSize, client: str = "a", *, num_running: int = 0, now: float = 0.0
) -> float | None:
    return estimator.first_token_seconds(client, of, num_running=num_running, now=now, has_media=False)


def observe(estimator: WaitEstimator, of: PromptSize, seconds: float, *, num_running: int = 0) -> None:
    """Has a prompt computed alone."""
    estimator.begin_prompt("alone", "a", of, num_running=num_running, now=0.0)
    estimator.end_prompt("alone", seconds, of)


def measured(of: PromptSize, num_running: int = 0) -> float:
    steps = 1 + of.num_tokens / 100
    return 0.02 + 0.001 * of.num_tokens + 0.005 * num_running * steps + 0.002 * of.num_media_tokens


def test_no_first_token_is_expected_before_a_prompt_was_measured(estimator: WaitEstimator) -> None:
    assert first_token(estimator, size()) is None
    observe(estimator, size(), 0.2)
    assert first_token(estimator, size()) == pytest.approx(0.2, rel=0.01)
    assert first_token(estimator, size(num_media_tokens=5)) is None


def test_finds_the_times_of_tokens_media_and_running_sequences(estimator: WaitEstimator) -> None:
    draw = random.Random(0)
    for number in range(200):
        drawn = size(num_tokens=draw.randint(1, 2000), num_media_tokens=draw.choice([0, draw.randint(1, 400)]))
        num_running = draw.randint(0, 16)
        late = 50 if number % 20 == 0 else 1
        seconds = late * measured(drawn, num_running) * draw.uniform(0.9, 1.1)
        observe(estimator, drawn, seconds, num_running=num_running)
    for num_tokens, num_media_tokens, num_running in ((50, 0, 0), (50, 0, 16), (500, 300, 0), (2000, 50, 8)):
        asked = size(num_tokens=num_tokens, num_media_tokens=num_media_tokens)
        found = first_token(estimator, asked, num_running=num_running)
        assert found == pytest.approx(measured(asked, num_running), rel=0.3)


def test_equal_prompts_are_enough_for_their_like(estimator: WaitEstimator) -> None:
    for _ in range(10):
        observe(estimator, size(), 0.3, num_running=2)
    assert first_token(estimator, size(), num_running=2) == pytest.approx(0.3, rel=0.01)


def test_a_prompt_that_took_much_too_long_changes_little(estimator: WaitEstimator) -> None:
    for number in range(20):
        observe(estimator, size(num_tokens=100 + number), 9.0 if number == 10 else 0.2)
    assert first_token(estimator, size()) == pytest.approx(0.2, rel=0.1)


def test_a_prompt_that_ends_without_a_token_tells_nothing(estimator: WaitEstimator) -> None:
    estimator.begin_prompt("cancelled", "a", size(), num_running=0, now=0.0)
    estimator.end_prompt("cancelled", 5.0)
    assert first_token(estimator, size()) is None


def test_preparation_with_media_is_apart(estimator: WaitEstimator) -> None:
    observe(estimator, size(), 0.2)
    estimator.observe_preparation(0.05, has_media=True)
    asked = estimator.first_token_seconds("a", size(), num_running=0, now=0.0, has_media=True)
    assert asked == pytest.approx(0.25, rel=0.01)
    assert first_token(estimator, size()) == pytest.approx(0.2, rel=0.01)


@pytest.fixture
def of_tokens(estimator: WaitEstimator) -> WaitEstimator:
    """Each token takes 2 ms."""
    for num_tokens in (50, 100, 200, 400) * 3:
        observe(estimator, size(num_tokens=num_tokens), num_tokens / 500)
    return estimator


def test_a_request_waits_for_what_is_left_of_the_prompts_before_it(of_tokens: WaitEstimator) -> None:
    of_tokens.begin_prompt("first", "a", size(), num_running=0, now=10.0)
    assert first_token(of_tokens, size(), now=10.0) == pytest.approx(0.4, rel=0.05)
    assert first_token(of_tokens, size(), now=10.1) == pytest.approx(0.3, rel=0.05)
    assert first_token(of_tokens, size(), now=99.0) == pytest.approx(0.2, rel=0.05)
    of_tokens.begin_prompt("second", "a", size(), num_running=0, now=10.1)
    assert first_token(of_tokens, size(), now=10.1) == pytest.approx(0.5, rel=0.05)
    of_tokens.end_prompt("first", 10.2, size())
    of_tokens.end_prompt("second", 10.4, size())
    assert first_token(of_tokens, size(), now=10.4) == pytest.approx(0.2, rel=0.05)


def test_another_client_s_prompts_take_no_more_than_its_share(of_tokens: WaitEstimator) -> None:
    for name in range(5):
        of_tokens.begin_prompt(name, "busy", size(), num_running=0, now=10.0)
    of_tokens.begin_prompt("own", "a", size(), num_running=0, now=10.0)
    assert first_token(of_tokens, size(), "a", now=10.0) == pytest.approx(0.2 + 0.4 + 0.2, rel=0.05)
    assert first_token(of_tokens, size(), "new", now=10.0) == pytest.approx(3 * 0.2, rel=0.05)


def test_a_change_of_speed_is_followed(estimator: WaitEstimator) -> None:
    for seconds in (0.1, 1.0, 0.1):
        for _ in range(60):
            observe(estimator, size(), seconds)
        assert first_token(estimator, size()) == pytest.approx(seconds, rel=0.1)
