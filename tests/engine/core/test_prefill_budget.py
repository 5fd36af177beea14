"""The prefill budget: its arithmetic, and the inter-token gaps that result."""

from collections.abc import Sequence
from statistics import median

import pytest

from glimpse.engine.core.prefill_budget import (
    DEFAULT_MEDIA_WEIGHT,
    NUM_FREE_TOKENS,
    NUM_UNTRIED_TOKENS,
    PrefillBudget,
    StepWork,
)
from tests.engine.checking_runner import PLACEHOLDER, generate, image_input
from tests.engine.core.timed_core import MEDIA_TOKEN_SECONDS, PROMPT_TOKEN_SECONDS, TimedCore, text

MAX_SLOWDOWN = 2.5


def decodes(seconds: float, num_prompt_tokens: int = 0) -> tuple[StepWork, float]:
    return StepWork(num_decodes=4, num_prompt_tokens=num_prompt_tokens, num_media_tokens=0), seconds


def prompt(num_tokens: int, seconds: float) -> tuple[StepWork, float]:
    return StepWork(num_decodes=0, num_prompt_tokens=num_tokens, num_media_tokens=0), seconds


def budget_after(*steps: tuple[StepWork, float], max_slowdown: float = 3.0) -> PrefillBudget:
    pace = PrefillBudget(max_slowdown=max_slowdown)
    for work, seconds in steps:
        pace.observe(work, seconds)
    return pace


@pytest.mark.parametrize(
    ("steps", "num_tokens"),
    [
        pytest.param([], NUM_UNTRIED_TOKENS, id="nothing measured"),
        pytest.param([decodes(1.0)], NUM_UNTRIED_TOKENS, id="prompts not measured"),
        pytest.param([prompt(500, 5.0)], NUM_FREE_TOKENS, id="decoding not measured"),
        pytest.param([prompt(500, 5.0), decodes(1.0)], 200, id="2 s to spare, 10 ms a token"),
        pytest.param([prompt(500, 50.0), decodes(1.0)], 20, id="2 s to spare, 100 ms a token"),
        pytest.param([prompt(500, 500.0), decodes(1.0)], NUM_FREE_TOKENS, id="too slow for any prompt token"),
        pytest.param([decodes(1.0), decodes(2.0, 100)], 200, id="time beyond a decode counts for the prompt"),
        pytest.param([decodes(1.0), decodes(1.0, 100)], 200, id="at most twice the measured size"),
        pytest.param([decodes(1.0), decodes(0.5, 20)], NUM_UNTRIED_TOKENS, id="faster than a decode"),
        pytest.param([prompt(500, 5.0), *[decodes(1.0)] * 5, *[decodes(9.0)] * 3], 200, id="slow outliers are ignored"),
        pytest.param(
            [prompt(500, 5.0), *[decodes(9.0)] * 9, *[decodes(1.0)] * 8], 200, id="old measurements are ignored"
        ),
        pytest.param(
            [prompt(500, 5.0), decodes(1.0, NUM_FREE_TOKENS)], 200, id="a few prompt tokens still measure decoding"
        ),
        pytest.param([decodes(1.0), prompt(10, 9.0)], NUM_UNTRIED_TOKENS, id="a short prompt is no measurement"),
    ],
)
def test_prompt_tokens_of_a_decoding_step(steps: Sequence[tuple[StepWork, float]], num_tokens: int):
    assert budget_after(*steps).num_prompt_tokens == num_tokens


def test_prompts_progress_even_if_no_slowdown_is_allowed():
    assert budget_after(prompt(500, 5.0), decodes(1.0), max_slowdown=1.0).num_prompt_tokens == NUM_FREE_TOKENS


@pytest.mark.parametrize(
    ("steps", "weight"),
    [
        ([], DEFAULT_MEDIA_WEIGHT),
        ([prompt(100, 1.0)], DEFAULT_MEDIA_WEIGHT),
        ([(StepWork(num_decodes=0, num_prompt_tokens=9, num_media_tokens=100), 3.0)], DEFAULT_MEDIA_WEIGHT),
        ([prompt(100, 1.0), (StepWork(num_decodes=0, num_prompt_tokens=100, num_media_tokens=100), 4.0)], 3.0),
        (
            [
                decodes(1.0),
                decodes(2.0, 100),
                (StepWork(num_decodes=4, num_prompt_tokens=50, num_media_tokens=100), 6.5),
            ],
            5.0,
        ),
    ],
)
def test_media_weight_is_the_measured_cost(steps: Sequence[tuple[StepWork, float]], weight: float):
    assert budget_after(*steps).media_weight == pytest.approx(weight)


def core_with_streams(num_streams: int, *, max_slowdown: float = MAX_SLOWDOWN) -> tuple[TimedCore, float]:
    """Returns a core with running answers, and their median gap without other work."""
    station = TimedCore(max_slowdown=max_slowdown)
    for index in range(num_streams):
        station.submit(text(f"stream {index}", 200))
    station.run(60)
    return station, median(station.gaps("stream 0")[-20:])


@pytest.mark.parametrize("num_streams", [1, 4, 16])
def test_long_prompt_bounds_inter_token_gaps_and_progresses(num_streams: int):
    station, quiet_seconds = core_with_streams(num_streams)
    num_before = len(station.gaps("stream 0"))
    station.submit(text("long", 4000))
    first_token_seconds = station.run_until_first_token("long")
    gaps = station.gaps("stream 0")[num_before:]
    assert max(gaps) <= 3 * quiet_seconds
    assert median(gaps) >= 0.7 * MAX_SLOWDOWN * quiet_seconds, "the allowed time is used"
    assert first_token_seconds <= 2 * 4000 * PROMPT_TOKEN_SECONDS


def test_prompt_takes_whole_steps_if_nothing_decodes():
    station = TimedCore(max_slowdown=MAX_SLOWDOWN)
    station.submit(text("long", 4000))
    station.run_until_first_token("long")
    assert [plan.num_tokens for plan in station.runner.plans] == [2048, 1952]


def test_budget_adapts_when_decoding_becomes_slower():
    station, _ = core_with_streams(4)
    station.runner.decode_seconds *= 8
    station.submit(text("long", 2000))
    first_token_seconds = station.run_until_first_token("long")
    assert first_token_seconds <= 3 * 2000 * PROMPT_TOKEN_SECONDS + 16 * station.runner.decode_seconds


def test_long_prompt_is_not_starved_by_short_ones():
    station, _ = core_with_streams(8)
    station.submit(text("long", 4000))
    num_steps = 0
    while len(station.times["long"]) < 2:
        station.submit(text(f"short {num_steps}", 30, max_tokens=5))
        station.run(1)
        num_steps += 1
    assert num_steps <= 150


def test_one_image_is_encoded_per_step_while_others_decode():
    station, quiet_seconds = core_with_streams(4)
    num_before = len(station.gaps("stream 0"))
    media = [image_input(str(index), 1 + 70 * index, 64) for index in range(6)]
    image = [PLACEHOLDER] * 64 + [1] * 6
    station.submit(generate("album", [1, *image * 6], *media))
    station.run_until_first_token("album")
    encoded = [len(plan.encode) for plan in station.runner.plans if plan.encode]
    assert encoded == [1] * 6
    assert max(station.gaps("stream 0")[num_before:]) <= 64 * MEDIA_TOKEN_SECONDS + 3 * quiet_seconds


def test_images_are_encoded_together_if_nothing_decodes():
    station = TimedCore(max_slowdown=MAX_SLOWDOWN)
    media = [image_input(str(index), 1 + 70 * index, 64) for index in range(6)]
    station.submit(generate("album", [1, *([PLACEHOLDER] * 64 + [1] * 6) * 6], *media))
    station.run_until_first_token("album")
    assert [len(plan.encode) for plan in station.runner.plans] == [6]
