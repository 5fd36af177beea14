"""The prefill budget: its arithmetic, and the inter-token gaps that result."""

from collections.abc import Sequence
from statistics import median

import pytest
from msgspec.structs import replace

from glimpse.engine.core.prefill_budget import (
    DECODE_INTERVAL,
    DEFAULT_MEDIA_WEIGHT,
    NUM_LEAST_TOKENS,
    NUM_UNTRIED_TOKENS,
    SAMPLE_INTERVAL,
    PrefillBudget,
    StepWork,
)
from tests.engine.checking_runner import PLACEHOLDER, generate, image_input
from tests.engine.core.timed_core import (
    DECODE_SECONDS,
    MEDIA_TOKEN_SECONDS,
    PROMPT_TOKEN_SECONDS,
    TimedCore,
    TimedRunner,
    text,
)

MAX_SLOWDOWN = 2.5


def decodes(seconds: float, num_prompt_tokens: int = 0) -> tuple[StepWork, float]:
    return StepWork(num_decodes=4, num_prompt_tokens=num_prompt_tokens, num_media_tokens=0), seconds


def prompt(num_tokens: int, seconds: float) -> tuple[StepWork, float]:
    return StepWork(num_decodes=0, num_prompt_tokens=num_tokens, num_media_tokens=0), seconds


def media(num_prompt_tokens: int, num_media_tokens: int) -> tuple[StepWork, float]:
    """Takes 1 s without the encoder where it has 9 prompt tokens, 2 s where it has more."""
    work = StepWork(num_decodes=0, num_prompt_tokens=num_prompt_tokens, num_media_tokens=num_media_tokens)
    return work, 1.0 if num_prompt_tokens == 9 else 2.0


def budget_after(*steps: tuple[StepWork, float], max_slowdown: float = 3.0) -> PrefillBudget:
    budget = PrefillBudget(max_slowdown=max_slowdown)
    for work, seconds in steps:
        budget.observe(work, seconds)
    return budget


@pytest.mark.parametrize(
    ("steps", "num_tokens"),
    [
        pytest.param([], NUM_UNTRIED_TOKENS, id="nothing measured"),
        pytest.param([prompt(500, 5.0)], NUM_UNTRIED_TOKENS, id="decoding not measured"),
        pytest.param([decodes(1.0)], NUM_LEAST_TOKENS, id="prompts not measured"),
        pytest.param([decodes(1.0), decodes(1.0, 8)], 20, id="at most twice the measured size"),
        pytest.param([prompt(504, 6.0), decodes(1.0)], 200, id="2 s to spare, 10 ms a token"),
        pytest.param([prompt(504, 51.0), decodes(1.0)], 20, id="2 s to spare, 100 ms a token"),
        pytest.param([prompt(500, 500.0), decodes(1.0)], NUM_LEAST_TOKENS, id="too slow for any prompt token"),
        pytest.param([decodes(1.0), decodes(1.0, 12), decodes(3.0, 100), decodes(9.0, 200)], 100, id="some are free"),
        pytest.param([decodes(9.0), decodes(1.0, 96)], 196, id="no step takes longer than a larger one"),
        pytest.param(
            [prompt(504, 6.0), *[decodes(1.0)] * 5 * DECODE_INTERVAL, *[decodes(9.0)] * 3 * DECODE_INTERVAL],
            200,
            id="slow outliers are ignored",
        ),
        pytest.param(
            [prompt(504, 6.0), *[decodes(9.0)] * 9, *[decodes(1.0)] * 8 * DECODE_INTERVAL],
            200,
            id="old measurements are ignored",
        ),
        pytest.param([prompt(504, 6.0), decodes(1.0), decodes(1.16, 16)], 200, id="a few prompt tokens are no decode"),
    ],
)
def test_prompt_tokens_of_a_decoding_step(steps: Sequence[tuple[StepWork, float]], num_tokens: int):
    assert budget_after(*steps).num_prompt_tokens(4) == pytest.approx(num_tokens, abs=1)


def test_prompts_progress_even_if_no_slowdown_is_allowed():
    assert budget_after(prompt(500, 5.0), decodes(1.0), max_slowdown=1.0).num_prompt_tokens(4) == NUM_LEAST_TOKENS


def test_more_decodes_to_come_set_the_pace():
    budget = budget_after(decodes(1.0), prompt(104, 2.0), prompt(1000, 24.4))
    assert budget.num_prompt_tokens(4) == pytest.approx(100 + 1.0 / 0.025, abs=1)
    assert budget.num_prompt_tokens(4, num_expected=54) == pytest.approx(100 + 2.5 / 0.025, abs=1)
    assert budget.num_prompt_tokens(4, num_expected=2) == budget.num_prompt_tokens(4)


@pytest.mark.parametrize(
    ("steps", "is_due"),
    [
        pytest.param([prompt(500, 5.0)], False, id="not measured"),
        pytest.param([prompt(500, 5.0), *[decodes(2.0, 60)] * 2], True, id="not measured for two steps"),
        pytest.param([decodes(1.0), *[decodes(2.0, 60)] * (SAMPLE_INTERVAL - 1)], False, id="measured lately"),
        pytest.param([decodes(1.0), *[decodes(2.0, 60)] * SAMPLE_INTERVAL], True, id="to be measured again"),
        pytest.param([decodes(1.0), decodes(2.0, 60), *[decodes(2.0, 60)] * 30], False, id="31 steps ago"),
        pytest.param([decodes(1.0), decodes(2.0, 60), decodes(4.0, 60), *[decodes(2.0, 60)] * 24], True, id="one late"),
        pytest.param([decodes(1.0), decodes(2.0, 60), decodes(1.4)], False, id="measured"),
        pytest.param([decodes(1.0), decodes(2.0, 60), decodes(1.6), decodes(2.0, 60)], False, id="it was slower"),
        pytest.param([decodes(1.0), decodes(2.0, 60), decodes(1.6), *[decodes(2.0, 60)] * 2], True, id="slower: soon"),
        pytest.param([decodes(1.0), *[prompt(500, 5.0)] * SAMPLE_INTERVAL], False, id="steps without decodes"),
    ],
)
def test_decoding_is_measured_from_time_to_time(steps: Sequence[tuple[StepWork, float]], is_due: bool):
    assert budget_after(*steps).is_decode_due is is_due


@pytest.mark.parametrize(
    ("steps", "weight"),
    [
        ([], DEFAULT_MEDIA_WEIGHT),
        ([(decodes(1.0), 0.0), (prompt(104, 2.0), 0.0)], DEFAULT_MEDIA_WEIGHT),
        ([(media(9, 50), 3.0)], 3.0 / 50 / (1.0 / 9)),
        ([(decodes(1.0), 0.0), (prompt(104, 2.0), 0.0), (media(104, 50), 2.0)], 4.0),
    ],
)
def test_media_weight_is_the_measured_cost(steps: Sequence[tuple[tuple[StepWork, float], float]], weight: float):
    budget = PrefillBudget(max_slowdown=3.0)
    for (work, seconds), encode_seconds in steps:
        budget.observe(work, seconds + encode_seconds, encode_seconds)
    assert budget.media_weight == pytest.approx(weight)


def core_with_streams(num_streams: int, *, decode_seconds: float = DECODE_SECONDS) -> tuple[TimedCore, float]:
    """Returns a core with running answers, and their median gap without other work."""
    station = TimedCore(max_slowdown=MAX_SLOWDOWN, runner=TimedRunner(decode_seconds=decode_seconds))
    for index in range(num_streams):
        station.submit(text(f"stream {index}", 200))
    station.run(60)
    return station, median(station.gaps("stream 0")[-20:])


@pytest.mark.parametrize("num_streams", [1, 4, 16])
@pytest.mark.parametrize(
    "decode_seconds",
    [pytest.param(DECODE_SECONDS, id="bound by reading"), pytest.param(DECODE_SECONDS / 6, id="bound by products")],
)
def test_long_prompt_bounds_inter_token_gaps_and_progresses(num_streams: int, decode_seconds: float):
    station, quiet_seconds = core_with_streams(num_streams, decode_seconds=decode_seconds)
    num_before = len(station.gaps("stream 0"))
    station.submit(text("long", 4000))
    first_token_seconds = station.run_until_first_token("long")
    gaps = station.gaps("stream 0")[num_before:]
    assert max(gaps) <= 3 * quiet_seconds
    assert median(gaps) >= 0.7 * MAX_SLOWDOWN * quiet_seconds, "the allowed time is used"
    assert first_token_seconds <= 2 * 4000 * PROMPT_TOKEN_SECONDS


def test_requests_of_one_client_keep_the_pace_that_all_of_them_will_have():
    station, _ = core_with_streams(1, decode_seconds=DECODE_SECONDS / 6)
    for index in range(15):
        station.submit(text(str(index), 512))
    num_before = len(station.gaps("stream 0"))
    station.run_until_first_token("14")
    gaps = station.gaps("stream 0")[num_before:]
    station.run(20)
    all_decode = median(station.gaps("stream 0")[-10:])
    assert max(gaps) <= 1.2 * MAX_SLOWDOWN * all_decode
    assert median(gaps) >= 0.7 * MAX_SLOWDOWN * all_decode, "prompts take what that leaves"


@pytest.mark.parametrize("priority", [0, -1])
def test_an_answer_that_is_read_keeps_its_own_pace_beside_a_flood_of_its_client(priority: int):
    station, quiet_seconds = core_with_streams(1, decode_seconds=DECODE_SECONDS / 6)
    station.run(100)
    for index in range(30):
        station.submit(replace(text(str(index), 512, max_tokens=1), priority=priority))
    num_before = len(station.gaps("stream 0"))
    station.run_until_first_token("29")
    assert max(station.gaps("stream 0")[num_before:]) <= 3 * quiet_seconds


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
