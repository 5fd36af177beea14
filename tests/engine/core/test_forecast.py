"""Probes foresee when a prompt has its first token: planned as the scheduler plans, at the cost of recent steps."""

import random
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from glimpse.engine.core.core import Core
from glimpse.engine.core.forecast import NO_WAIT
from glimpse.engine.core.limits import SchedulerLimits
from glimpse.engine.core.plan import InFlightStep, StepPlan
from glimpse.engine.core.request import ModelSpec
from glimpse.engine.core.scheduler import Scheduler
from glimpse.engine.protocol.messages import BACKGROUND_PRIORITY, Generate, RequestStats
from glimpse.engine.protocol.sampling_params import SamplingParams
from tests.engine.checking_runner import PLACEHOLDER, generate, image_input
from tests.engine.core.timed_core import DECODE_SECONDS, PROMPT_TOKEN_SECONDS, TimedCore, TimedRunner, text


def foresee(timed: TimedCore, request: Generate) -> RequestStats:
    timed.times["probe"] = []
    timed.core.submit(replace(request, request_id="probe", is_probe=True))
    (event,) = (event for event in timed.run(1) if event.request_id == "probe")
    return event.stats


def foreseen_wait(scheduler: Scheduler, num_tokens: float) -> float:
    """Returns what a front end expects, which counts the tokens of all prompts that have no token yet."""
    wait = scheduler.expected_wait()
    return wait.place_seconds + num_tokens * wait.token_seconds


def measured_core(num_prompt_tokens: int) -> TimedCore:
    """A core that has computed a prompt alone."""
    timed = TimedCore(max_slowdown=4)
    timed.submit(text("measured", num_prompt_tokens, max_tokens=1))
    timed.run_until_first_token("measured")
    return timed


@dataclass(slots=True, kw_only=True)
class Traffic:
    """Requests at random times, of random clients, some with an image."""

    draw: random.Random
    num_clients: int
    timed: TimedCore
    num_requests: int = 0

    def request(self) -> Generate:
        self.num_requests += 1
        num_tokens, num_rows = self.draw.randint(5, 1500), self.draw.choice([0, 0, self.draw.randint(8, 300)])
        media = (image_input(f"image {self.num_requests}", num_tokens, num_rows),) if num_rows else ()
        return generate(
            f"request {self.num_requests}",
            [1] * num_tokens + [PLACEHOLDER] * num_rows,
            *media,
            sampling=SamplingParams(max_tokens=self.draw.randint(1, 80)),
            client=f"client {self.draw.randrange(self.num_clients)}",
        )

    def flow(self) -> None:
        """Lets requests come and steps pass."""
        for _ in range(self.draw.choice([0, 0, 1, 3])):
            self.timed.submit(self.request())
        self.timed.run(self.draw.randint(1, 12))


@pytest.mark.parametrize("max_sequences", [64, 6])
@pytest.mark.parametrize("num_clients", [1, 4])
@pytest.mark.parametrize("max_slowdown", [1.5, 4, 1000])
def test_first_tokens_come_when_they_are_foreseen(max_slowdown: float, num_clients: int, max_sequences: int) -> None:
    ratios: list[float] = []
    for seed in range(2):
        timed = TimedCore(max_slowdown=max_slowdown, max_sequences=max_sequences)
        traffic = Traffic(draw=random.Random(seed), num_clients=num_clients, timed=timed)
        for number in range(60):
            traffic.flow()
            if number >= 15 and number % 3 == 0:
                request = traffic.request()
                foreseen = foresee(timed, request)
                timed.submit(request)
                seconds = timed.run_until_first_token(request.request_id)
                if foreseen.first_token_seconds:  # else no medium was encoded yet
                    ratios.append(seconds / foreseen.first_token_seconds)
    assert len(ratios) > 25
    assert sum(1 / 1.5 <= ratio <= 1.5 for ratio in ratios) >= 0.85 * len(ratios)


def test_nothing_is_foreseen_before_a_step_was_measured() -> None:
    timed = TimedCore(max_slowdown=4)
    assert foresee(timed, text("a", 10)).first_token_seconds == 0.0


def test_a_prompt_alone_is_foreseen_exactly() -> None:
    timed, draw = TimedCore(max_slowdown=4), random.Random(0)
    for number in range(12):
        timed.submit(text(f"r{number}", draw.randint(100, 900), max_tokens=4))
        timed.run(6)
    foreseen = foresee(timed, text("a", 300))
    timed.submit(text("a", 300))
    assert timed.run_until_first_token("a") == pytest.approx(foreseen.first_token_seconds, rel=0.02)


def test_media_are_foreseen_once_some_were_encoded() -> None:
    timed = TimedCore(max_slowdown=4)
    image = generate("b", [1] + [PLACEHOLDER] * 8, image_input("b", 1, 8), sampling=SamplingParams(max_tokens=1))
    timed.submit(text("a", 10, max_tokens=1))
    timed.run_until_first_token("a")
    assert foresee(timed, image).first_token_seconds == 0.0
    timed.submit(image)
    timed.run_until_first_token("b")
    cached = foresee(timed, image)
    assert cached.encode_seconds == 0.0
    other = replace(image, media=[image_input("c", 1, 8)])
    assert foresee(timed, other).encode_seconds == pytest.approx(0.008, rel=0.01)


def test_a_sequence_waits_for_a_place() -> None:
    timed = TimedCore(max_slowdown=4, max_sequences=1)
    for name in ("a", "b"):
        timed.submit(text(name, 10, max_tokens=40))
    timed.run_until_first_token("b")
    foreseen = foresee(timed, text("c", 10))
    assert foreseen.queue_seconds == pytest.approx(40 * DECODE_SECONDS, rel=0.1)
    assert foreseen.first_token_seconds == pytest.approx(foreseen.queue_seconds + DECODE_SECONDS, rel=0.1)


def test_a_full_queue_says_when_it_has_a_place() -> None:
    timed = TimedCore(max_slowdown=4, max_sequences=1, max_waiting=1)
    for number in range(9):  # waits are foreseen after some prompts
        timed.submit(text(f"r{number}", 10, max_tokens=200))
        timed.run_until_first_token(f"r{number}")
        timed.run(199 if number < 8 else 0)
    timed.submit(text("waits", 10))
    timed.run(40)
    timed.submit(text("refused", 10))
    [refused] = (event for event in timed.run(1) if event.request_id == "refused")
    seconds = refused.retry_after_seconds
    assert seconds == pytest.approx(160 * DECODE_SECONDS, abs=1)
    assert refused.message == f"the queue is full: 1 requests are waiting; retry in {seconds} s"
    timed.run(160)
    assert len(timed.times["waits"]) > 1


def test_a_sequence_waits_for_blocks_of_sliding_layers() -> None:
    """Blocks may be short where others are not: a prompt takes all of a step, then those of its window."""
    timed = TimedCore(max_slowdown=1000, window=64, num_sliding_blocks=133)
    for number in range(6):
        timed.submit(text(f"r{number}", 1000, max_tokens=60))
    timed.run_until_first_token("r5")
    at_once, later = (foresee(timed, text("c", num_tokens)).queue_seconds for num_tokens in (1000, 2000))
    assert at_once == 0.0
    timed.submit(text("c", 2000, max_tokens=1))
    seconds = timed.run_until_first_token("c")
    assert later + 2000 * PROMPT_TOKEN_SECONDS == pytest.approx(seconds, rel=0.1)


def test_a_long_queue_is_foreseen_from_its_first_prompts() -> None:
    timed, draw = TimedCore(max_slowdown=4), random.Random(0)
    for number in range(300):
        timed.submit(text(f"r{number}", draw.randint(10, 400), max_tokens=30, client=f"c{number % 3}"))
    timed.run(100)
    foreseen = foresee(timed, text("last", 50, client="c1"))
    assert timed.core.scheduler.num_waiting > 100
    timed.submit(text("last", 50, client="c1"))
    seconds = timed.run_until_first_token("last")
    assert 0.5 < foreseen.queue_seconds / seconds < 1.5
    assert seconds == pytest.approx(foreseen.first_token_seconds, rel=0.35)


@pytest.mark.parametrize("max_sequences", [8, 64])
def test_all_that_waits_begins_when_it_is_foreseen(max_sequences: int) -> None:
    timed, draw = TimedCore(max_slowdown=4, max_sequences=max_sequences), random.Random(0)

    def submit(number: int, priority: int = 0) -> None:
        request = text(f"r{number}", draw.randint(10, 400), max_tokens=draw.randint(1, 60), client=f"c{priority}")
        timed.submit(replace(request, priority=priority))

    for number in range(60):
        submit(number)
        timed.run(5)
    timed.run(300)
    scheduler = timed.core.scheduler
    assert scheduler.expected_wait() == NO_WAIT
    submit(60, BACKGROUND_PRIORITY)
    assert scheduler.expected_wait() == NO_WAIT
    for number in range(100, 300):
        submit(number)
    timed.run(40)
    assert scheduler.num_waiting > 100
    prompts = [each for each in (*scheduler.state.running, *scheduler.state.queue.waiting()) if not each.decodes]
    tokens = sum(each.num_tokens + scheduler.answer_tokens for each in prompts)
    timed.run(1)
    begun, foreseen = timed.runner.now, foreseen_wait(scheduler, tokens)
    for number in range(100, 300):
        timed.run_until_first_token(f"r{number}")
    seconds = max(timed.times[f"r{number}"][1] for number in range(100, 300)) - begun
    assert foreseen == pytest.approx(seconds, rel=0.35)


@pytest.mark.parametrize("num_short", [1, 150])
def test_short_prompts_behind_a_long_one_are_not_charged_for_its_length(num_short: int) -> None:
    timed = TimedCore(max_slowdown=4)
    for number in range(8):
        timed.submit(text(f"r{number}", 300 + 100 * number, max_tokens=4))
        timed.run(8)
    timed.submit(text("long", 7000, max_tokens=1))
    timed.run(1)
    for number in range(num_short):
        timed.submit(text(f"short {number}", 9, max_tokens=1))
    timed.run(1)
    foreseen, begun = foreseen_wait(timed.core.scheduler, 7000 + 9 * num_short), timed.runner.now
    timed.run_until_first_token(f"short {num_short - 1}")
    assert foreseen == pytest.approx(timed.runner.now - begun, rel=0.1)


@dataclass(kw_only=True)
class StallingRunner(TimedRunner):
    """Stops for half a minute in one step, as a machine does that reads the weights at first, or pauses."""

    stalled_step: int

    def launch(self, plan: StepPlan) -> InFlightStep:
        self.now += 30.0 * (len(self.plans) == self.stalled_step)
        return super().launch(plan)


@pytest.mark.parametrize("stalled_step", [0, 9, 30])
@pytest.mark.parametrize("num_before", [0, 1, 10])
def test_no_flood_that_is_soon_answered_is_expected_to_wait_for_a_minute(num_before: int, stalled_step: int) -> None:
    timed, draw = TimedCore(max_slowdown=4, runner=StallingRunner(stalled_step=stalled_step)), random.Random(0)
    for number in range(num_before):
        timed.submit(text(f"before {number}", 14, max_tokens=8))
        timed.run(9)
    flood = {f"r{number}": draw.randint(10, 200) for number in range(60)}
    for name, num_tokens in flood.items():
        timed.submit(text(name, num_tokens, max_tokens=draw.randint(8, 40)))
    scheduler, waits = timed.core.scheduler, list[float]()
    while left := [name for name in flood if len(timed.times[name]) < 2]:
        timed.run(1)
        waits.append(foreseen_wait(scheduler, sum(flood[name] + scheduler.answer_tokens for name in left)))
    assert max(timed.times[name][1] - timed.times[name][0] for name in flood) < 40
    assert max(waits) < 60


def test_steps_are_brief_while_newcomers_are_expected() -> None:
    timed = measured_core(1400)
    at_once = foresee(timed, text("c", 1400)).first_token_seconds
    timed.submit(text("a", 10, max_tokens=8, client="a"))
    timed.run(2)
    timed.submit(text("b", 10, max_tokens=8, client="b"))
    timed.submit(text("d", 700, max_tokens=1))
    timed.run(20)
    in_brief_steps = foresee(timed, text("c", 1400)).first_token_seconds
    assert in_brief_steps > 1.1 * at_once
    timed.submit(text("c", 1400))
    assert timed.run_until_first_token("c") == pytest.approx(in_brief_steps, rel=0.1)


def test_probes_are_answered_by_what_is_left_after_the_step() -> None:
    timed = measured_core(1000)
    alone = foresee(timed, text("c", 10)).first_token_seconds
    timed.submit(text("long", 1000, max_tokens=1))
    assert foresee(timed, text("c", 10)).first_token_seconds == pytest.approx(alone, rel=0.1)


def test_prompts_of_less_priority_are_not_waited_for() -> None:
    timed = measured_core(10)
    alone = foresee(timed, text("c", 10)).first_token_seconds
    timed.submit(replace(text("a", 6000), priority=5))
    assert foresee(timed, text("c", 10)).first_token_seconds == pytest.approx(alone, rel=0.5)


@pytest.mark.parametrize("seed", range(8))
def test_every_state_of_the_scheduler_has_a_forecast(seed: int) -> None:
    """Tiny steps, few blocks, clients in the background: a probe is answered, and the queue is part of the time."""
    draw = random.Random(seed)
    block_size, max_model_len = draw.choice([1, 4, 16]), draw.choice([48, 208, 608])
    limits = SchedulerLimits(
        num_blocks=max_model_len // block_size + draw.randint(1, 40),
        block_size=block_size,
        max_model_len=max_model_len,
        max_batch_tokens=draw.choice([1, 2, 7, 64, 512]),
        max_sequences=draw.choice([1, 2, 8, 64]),
        encoder_bytes_per_row=1,
        encoder_cache_bytes=draw.choice([10, 100, 1000]),
        prefix_caching=draw.random() < 0.5,
        max_decode_slowdown=draw.choice([1, 2, 9]),
    )
    runner = TimedRunner()
    model = ModelSpec(vocab_size=8, encoder_row_width=2, eos_token_ids=())
    core = Core(runner=runner, model=model, limits=limits, max_waiting=1000, clock=lambda: runner.now)
    for number in range(100):
        num_tokens, num_rows = draw.randint(1, max_model_len // 2), draw.choice([0, draw.randint(1, 10)])
        media = (image_input(f"image {number % 6}", num_tokens, num_rows),) if num_rows else ()
        request = generate(
            f"request {number}",
            [1] * num_tokens + [PLACEHOLDER] * num_rows,
            *media,
            sampling=SamplingParams(max_tokens=draw.randint(1, 50)),
            client=f"client {draw.randrange(4)}",
        )
        request = replace(request, priority=draw.choice([0, -3, 5, BACKGROUND_PRIORITY]))
        core.submit(replace(request, is_probe=True, request_id="probe"))
        core.submit(request)
        (stats,) = (event.stats for event in core.step().events if event.request_id == "probe")
        assert 0 <= stats.queue_seconds <= stats.first_token_seconds
