"""The prefill budget on a GPU, where the first prompt token of a step costs its launches."""

from collections.abc import Sequence as Many
from dataclasses import dataclass
from statistics import median, quantiles

import pytest

from glimpse.engine.core.prefill_budget import (
    NUM_GPU_TOKENS,
    PrefillBudget,
    StepWork,
)
from glimpse.engine.core.step_planner import ScheduledStep
from tests.engine.core.test_prefill_budget import decodes
from tests.engine.core.timed_core import GPU_DECODE_SECONDS, LAUNCH_SECONDS, TimedCore, TimedGpuRunner, text

NUM_STREAMS = 32
PROMPT_TOKENS = 1024


@pytest.mark.parametrize(
    ("steps", "num_tokens"),
    [
        pytest.param([decodes(1.0)], NUM_GPU_TOKENS, id="prompts not measured"),
        pytest.param([decodes(1.0), decodes(9.0, 600)], NUM_GPU_TOKENS, id="too slow for any prompt token"),
        pytest.param([decodes(1.0), decodes(4.0, 600), decodes(7.0, 1400)], 1133, id="1.75 s, and 3.75 ms a token"),
        pytest.param([decodes(1.0), decodes(4.0, 600)], 902, id="one size: in proportion"),
        pytest.param([decodes(1.0), decodes(3.0, 200), decodes(3.0, 800)], 1604, id="all cost the same: try more"),
        pytest.param([decodes(1.0), *[decodes(2.5, 1)] * 8, decodes(7.0, 801)], 624, id="one token is no decode"),
    ],
)
def test_prompt_tokens_of_a_decoding_step(steps: Many[tuple[StepWork, float]], num_tokens: int):
    budget = PrefillBudget(max_slowdown=6.0, uses_gpu=True)
    for work, seconds in steps:
        budget.observe(work, seconds)
    assert budget.num_prompt_tokens(4) == pytest.approx(num_tokens, abs=1)


def test_launches_count_for_their_own_step(monkeypatch: pytest.MonkeyPatch) -> None:
    core, observed = TimedCore(max_slowdown=2.35, runner=TimedGpuRunner()), list[tuple[bool, float]]()

    def observe(scheduled: ScheduledStep, seconds: float, _: float) -> None:
        observed.append((scheduled.work.num_prompt_tokens > 0, seconds))

    core.submit(text("stream", 10))
    core.run(10)
    monkeypatch.setattr(core.core.scheduler, "observe", observe)
    core.submit(text("prompt", 10))
    core.run(10)
    (prompt_seconds,) = (seconds for has_prompt, seconds in observed if has_prompt)
    decode_seconds = [seconds for has_prompt, seconds in observed if not has_prompt]
    assert prompt_seconds >= LAUNCH_SECONDS
    assert max(decode_seconds) == pytest.approx(GPU_DECODE_SECONDS)
    assert len(decode_seconds) == 8, "not the one whose results waited for the launches"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a simulated GPU made of requests that follow each other, `NUM_STREAMS` at a time."""

    tokens_per_second: float
    first_token_seconds: float
    """Median of the requests that began beside others."""
    p99_gap_seconds: float
    """Between two tokens of a request."""


def load(*, max_slowdown: float = 2.35, num_requests: int = 160) -> Load:
    core = TimedCore(max_slowdown=max_slowdown, runner=TimedGpuRunner())
    num_sent = num_ended = 0
    while num_ended < num_requests:
        while num_sent < min(num_requests, num_ended + NUM_STREAMS):
            # Answers of 64 to 192 tokens, so that prompts begin at different times.
            core.submit(text(str(num_sent), PROMPT_TOKENS, max_tokens=64 + num_sent * 37 % 129))
            num_sent += 1
        num_ended += sum(event.finish is not None for event in core.run(1))
    times = list(core.times.values())
    return Load(
        tokens_per_second=sum(len(each) - 1 for each in times) / core.runner.now,
        first_token_seconds=median(each[1] - each[0] for each in times[NUM_STREAMS:]),
        p99_gap_seconds=quantiles((gap for name in core.times for gap in core.gaps(name)), n=100)[-1],
    )


def test_a_bound_below_the_cost_of_launches_costs_little_throughput() -> None:
    bounded, unbounded = load(), load(max_slowdown=1000)
    assert bounded.tokens_per_second >= 0.9 * unbounded.tokens_per_second
    assert bounded.first_token_seconds <= 2 * unbounded.first_token_seconds
    assert bounded.p99_gap_seconds <= 0.75 * unbounded.p99_gap_seconds
