"""The expected time to the first token follows what was measured."""

import random

import pytest

from glimpse.server.call.first_token_estimator import FirstTokenEstimator


def measured(num_tokens: int, num_running: int) -> float:
    return 0.02 + 0.001 * num_tokens + 0.005 * num_running


def test_nothing_is_expected_before_a_request_was_measured() -> None:
    estimator = FirstTokenEstimator()
    assert estimator.prompt_seconds(num_tokens=10, num_media_tokens=0, num_running=0) is None
    estimator.observe(num_media_tokens=0, num_tokens=100, num_running=0, seconds=0.2)
    assert estimator.prompt_seconds(num_tokens=100, num_media_tokens=0, num_running=0) == pytest.approx(0.2, rel=0.01)
    assert estimator.prompt_seconds(num_tokens=100, num_media_tokens=5, num_running=0) is None


def test_finds_the_constant_and_the_times_of_tokens_and_of_running_sequences() -> None:
    draw, estimator = random.Random(0), FirstTokenEstimator()
    for _ in range(100):
        num_tokens, num_running = draw.randint(1, 2000), draw.randint(0, 16)
        seconds = measured(num_tokens, num_running) * draw.uniform(0.9, 1.1)
        estimator.observe(num_media_tokens=0, num_tokens=num_tokens, num_running=num_running, seconds=seconds)
    for num_tokens, num_running in ((10, 0), (500, 0), (2000, 8)):
        expected = estimator.prompt_seconds(num_tokens=num_tokens, num_media_tokens=0, num_running=num_running)
        assert expected == pytest.approx(measured(num_tokens, num_running), rel=0.3)


def test_equal_requests_are_enough_for_their_like() -> None:
    estimator = FirstTokenEstimator()
    for _ in range(10):
        estimator.observe(num_media_tokens=0, num_tokens=300, num_running=2, seconds=0.3)
    assert estimator.prompt_seconds(num_tokens=300, num_media_tokens=0, num_running=2) == pytest.approx(0.3, rel=0.01)


def test_media_that_are_encoded_add_to_it() -> None:
    estimator = FirstTokenEstimator()
    estimator.observe(num_media_tokens=0, num_tokens=100, num_running=0, seconds=0.2)
    for seconds in (9.0, 0.3, 0.3):  # the first one of a server takes long
        estimator.observe(num_media_tokens=50, num_tokens=100, num_running=0, seconds=seconds)
    expected = estimator.prompt_seconds(num_tokens=100, num_media_tokens=100, num_running=0)
    assert expected == pytest.approx(0.2 + 0.2, rel=0.01)


def test_preparation_with_media_is_apart() -> None:
    estimator = FirstTokenEstimator()
    estimator.observe_preparation(0.05, has_media=True)
    assert (estimator.preparation_seconds(has_media=True), estimator.preparation_seconds(has_media=False)) == (0.05, 0)


def test_a_request_waits_for_the_prompts_before_it() -> None:
    estimator = FirstTokenEstimator()
    assert estimator.wait_seconds(10.0) == 0
    estimator.observe(num_media_tokens=0, num_tokens=100, num_running=0, seconds=0.2)
    estimator.end("earlier", 10.0)
    for name in ("first", "second"):
        estimator.begin(name, num_tokens=100, num_media_tokens=0, num_running=0)
    assert estimator.wait_seconds(10.1) == pytest.approx(0.3, rel=0.01)
    assert estimator.end("first", 10.2) == 10.0
    assert estimator.wait_seconds(10.3) == pytest.approx(0.1, rel=0.05)
    estimator.end("second", 10.4)
    assert estimator.wait_seconds(10.4) == 0


def test_media_alone_are_enough_for_media() -> None:
    estimator = FirstTokenEstimator()
    estimator.observe(num_media_tokens=50, num_tokens=100, num_running=0, seconds=0.3)
    expected = estimator.prompt_seconds(num_tokens=100, num_media_tokens=50, num_running=0)
    assert expected == pytest.approx(0.3, rel=0.01)
    assert estimator.prompt_seconds(num_tokens=100, num_media_tokens=0, num_running=0) is None


def test_a_change_of_speed_is_followed() -> None:
    estimator = FirstTokenEstimator()
    for seconds in (0.1, 1.0):
        for _ in range(60):
            estimator.observe(num_media_tokens=0, num_tokens=100, num_running=0, seconds=seconds)
    assert estimator.prompt_seconds(num_tokens=100, num_media_tokens=0, num_running=0) == pytest.approx(1.0, rel=0.1)
