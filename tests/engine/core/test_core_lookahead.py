"""Async scheduling: answers do not depend on it."""

import logging
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glimpse.engine.core.core import Core
from glimpse.engine.core.plan import PENDING_TOKEN_ID
from glimpse.engine.errors import EngineErrorCode
from glimpse.engine.protocol.messages import FinishReason, Generate, TokenEvent
from glimpse.engine.protocol.sampling_params import SamplingParams
from tests.engine.checking_runner import (
    EOS,
    PLACEHOLDER,
    CheckingRunner,
    answers,
    generate,
    image_input,
    make_core,
    run_until_idle,
)

ENDLESS = SamplingParams(max_tokens=40, ignore_eos=True)

samplings = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 20),
    ignore_eos=st.booleans(),
    min_tokens=st.sampled_from([0, 0, 3]),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.0, 1.0]),
)
arrivals = st.lists(
    st.tuples(st.lists(st.integers(1, 2), min_size=1, max_size=20), st.booleans(), samplings, st.integers(0, 4)),
    min_size=1,
    max_size=8,
)


def ahead() -> tuple[Core, CheckingRunner]:
    return make_core(num_blocks=60, max_model_len=60, async_scheduling=True, lazy=True)


def contents(core: Core, requests: Sequence[tuple[Generate, int]]) -> dict[str, tuple[object, ...]]:
    """Returns what the events of each request contain, after the given number of steps behind each arrival."""
    events: dict[str, list[TokenEvent]] = {}
    steps = []
    for request, num_steps in requests:
        core.submit(request)
        steps += [core.step() for _ in range(num_steps)]
    for step in [*steps, *run_until_idle(core)]:
        for event in step.events:
            events.setdefault(event.request_id, []).append(event)
    return {
        request_id: (
            [token_id for event in own for token_id in event.token_ids],
            [event.finish for event in own if event.finish],
            [event.stats.num_cached_tokens for event in own if event.stats.num_cached_tokens],
            [len(event.stats.encoded_media) for event in own if len(event.stats.encoded_media)],
            [event.error for event in own],
        )
        for request_id, own in events.items()
    }


@given(
    arrivals=arrivals,
    max_batch_tokens=st.integers(4, 40),
    max_sequences=st.integers(1, 4),
    lazy=st.booleans(),
    mistakes=st.lists(st.booleans(), max_size=30),
)
def test_events_equal_those_of_synchronous_scheduling(
    arrivals: list[tuple[list[int], bool, SamplingParams, int]],
    max_batch_tokens: int,
    max_sequences: int,
    lazy: bool,
    mistakes: list[bool],
):
    requests: list[tuple[Generate, int]] = []
    for index, (token_ids, has_image, sampling, num_steps) in enumerate(arrivals):
        # Salted, because cache hits depend on the exact time of arrival.
        media = [image_input("cat", 0, 3)] if has_image else []
        prompt = [*[PLACEHOLDER] * 3 * has_image, *token_ids]
        requests.append((generate(str(index), prompt, *media, sampling=sampling, cache_salt=str(index)), num_steps))
    cores = [
        make_core(
            num_blocks=200,
            max_model_len=80,
            max_batch_tokens=max_batch_tokens,
            max_sequences=max_sequences,
            async_scheduling=async_scheduling,
            lazy=async_scheduling and lazy,
        )
        for async_scheduling in (False, True)
    ]
    cores[1][1].mistakes = mistakes
    step_by_step, launched_ahead = (contents(core, requests) for core, _ in cores)
    assert launched_ahead == step_by_step


def test_prefix_is_found_as_soon_as_with_synchronous_scheduling():
    prompt = [1] * 18
    cores = [
        make_core(num_blocks=60, max_model_len=60, async_scheduling=async_scheduling)
        for async_scheduling in (False, True)
    ]
    first = [
        contents(core, [(generate(name, prompt, sampling=ENDLESS), 0) for name in ("0", "1", "2")]) for core, _ in cores
    ]
    assert first[0] == first[1]
    assert first[1]["1"][2] == [16, 16], "reported with the first and the last token"


def test_next_turn_finds_the_answer_as_with_synchronous_scheduling():
    found: list[object] = []
    for async_scheduling in (False, True):
        core, _ = make_core(num_blocks=60, max_model_len=60, block_size=4, async_scheduling=async_scheduling)
        [first] = contents(core, [(generate("0", [1, 2, 1], sampling=ENDLESS), 0)]).values()
        assert isinstance(first[0], list)
        found.append(contents(core, [(generate("1", [1, 2, 1, *first[0], 1]), 0)])["1"][2])
    assert found == [[40], [40]], "the last of 43 tokens is never computed"


def test_next_step_is_launched_before_waiting_for_this_one():
    core, runner = ahead()
    core.submit(generate("0", [1, 2], sampling=ENDLESS))
    step = core.step()
    assert len(answers([step])["0"]) == 1
    assert [plan.chunks[0].token_ids for plan in runner.plans] == [(1, 2), (PENDING_TOKEN_ID,)]
    assert len(runner.launched) == 1
    core.step()
    assert len(runner.launched) == 1


def test_sequence_that_ends_by_length_is_not_computed_further():
    core, runner = ahead()
    core.submit(generate("0", [1, 2], sampling=SamplingParams(max_tokens=3, ignore_eos=True)))
    run_until_idle(core)
    assert [len(plan.chunks) for plan in runner.plans] == [1, 1, 1, 0]


def test_step_after_an_end_token_is_discarded():
    core, runner = ahead()
    runner.script = [1, EOS, 2]
    core.submit(generate("0", [1, 2], sampling=SamplingParams(max_tokens=9)))
    steps = run_until_idle(core)
    assert answers(steps) == {"0": [1, EOS]}
    assert [len(plan.chunks) for plan in runner.plans] == [1, 1, 1, 0]
    assert core.scheduler.state.block_pool.num_used == 0
    core.submit(generate("again", [1, 2, 1, EOS, 1]))
    run_until_idle(core)
    assert runner.plans[-2].chunks[0].start == 0, "the block was never filled with computed tokens"


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(max_tokens=9, presence_penalty=0.5, ignore_eos=True),
        SamplingParams(max_tokens=9, repetition_penalty=1.1, ignore_eos=True),
        SamplingParams(max_tokens=9, logit_bias={1: 1.0}, ignore_eos=True),
        SamplingParams(max_tokens=9, min_tokens=9),
    ],
)
def test_sampling_that_needs_earlier_tokens_delays_the_next_step(sampling: SamplingParams):
    core, runner = ahead()
    core.submit(generate("free", [1, 2], sampling=ENDLESS))
    core.submit(generate("bound", [2, 2], sampling=sampling))
    run_until_idle(core)
    bound = [plan for plan in runner.plans if len(plan.chunks) == 2]
    assert len(bound) == 9
    assert all(PENDING_TOKEN_ID not in chunk.token_ids for plan in bound for chunk in plan.chunks)
    assert any(PENDING_TOKEN_ID in chunk.token_ids for plan in runner.plans for chunk in plan.chunks)


def test_cancel_discards_the_step_in_flight():
    core, _ = ahead()
    for name in ("0", "1"):
        core.submit(generate(name, [int(name)] * 5, sampling=ENDLESS))
    core.step()
    core.cancel("1")
    core.submit(generate("1", [2, 1], sampling=SamplingParams(max_tokens=2, ignore_eos=True)))
    steps = [core.step(), core.step()]
    assert [(event.request_id, event.finish) for event in steps[0].events] == [
        ("1", FinishReason.CANCELLED),
        ("0", None),
    ]
    core.cancel("0")
    steps += run_until_idle(core)
    assert len(answers(steps)["1"]) == 2, "only events of the new request"
    assert core.scheduler.state.block_pool.num_used == 0


def test_shutdown_waits_for_the_step_in_flight():
    core, runner = ahead()
    core.submit(generate("0", [1, 2], sampling=ENDLESS))
    core.step()
    assert [event.finish for event in core.shutdown().events] == [FinishReason.CANCELLED]
    assert not runner.launched
    core.submit(generate("1", [1, 2], sampling=ENDLESS))
    assert len(answers(run_until_idle(core))["1"]) == 40


@pytest.mark.parametrize("fails", ["before", "after"])
@pytest.mark.parametrize("lazy", [False, True])
def test_failed_step_with_another_in_flight_ends_only_its_own_requests(
    fails: str, lazy: bool, caplog: pytest.LogCaptureFixture
):
    core, runner = make_core(num_blocks=60, max_model_len=60, max_sequences=2, async_scheduling=True, lazy=lazy)
    core.submit(generate("0", [1] * 9, sampling=ENDLESS))
    core.step()
    core.submit(generate("1", [1] * 9, sampling=ENDLESS))
    runner.fails = fails
    with caplog.at_level(logging.CRITICAL + 1, logger="glimpse.engine.core.step_pipeline"):
        steps = run_until_idle(core)
    events = [event for step in steps for event in step.events]
    # The next launched step contains both requests. With lazy execution, the failing one contains only the first.
    failed = {"0"} if lazy else {"0", "1"}
    assert {event.request_id for event in events if event.error is EngineErrorCode.INTERNAL} == failed
    assert len(answers(steps).get("1", [])) == (40 if lazy else 0)


def test_ended_sequence_is_forgotten_although_the_step_that_says_so_is_voided(caplog: pytest.LogCaptureFixture):
    core, runner = ahead()
    core.submit(generate("0", [1] * 5, sampling=SamplingParams(max_tokens=3, ignore_eos=True)))
    core.submit(generate("1", [1] * 5, sampling=ENDLESS))
    core.step()
    core.step()
    core.cancel("1")
    runner.fails = "before"
    with caplog.at_level(logging.CRITICAL + 1, logger="glimpse.engine.core.step_pipeline"):
        core.step()  # the step after it, which only forgets "1", was launched before this one failed
        run_until_idle(core)
    assert not runner.sequences


@pytest.mark.parametrize("fails", ["before for want of memory", "after for want of memory"])
@pytest.mark.parametrize("lazy", [False, True])
def test_out_of_memory_ends_only_the_newest_prompt(fails: str, lazy: bool, caplog: pytest.LogCaptureFixture):
    core, runner = make_core(num_blocks=60, max_model_len=60, async_scheduling=True, lazy=lazy, block_size=4)
    core.submit(generate("old", [1] * 9, sampling=ENDLESS))
    core.step()
    core.step()
    core.submit(generate("new", [2] * 9, sampling=ENDLESS))
    core.submit(generate("newest", [PLACEHOLDER] * 9, image_input("cat", 0, 9), sampling=ENDLESS))
    if lazy:
        core.step()  # launches the step that contains them
    runner.fails = fails
    with caplog.at_level(logging.CRITICAL + 1, logger="glimpse.engine.core.step_pipeline"):
        steps = run_until_idle(core)
    [failure] = [event for step in steps for event in step.events if event.error]
    assert (failure.request_id, failure.error) == ("newest", EngineErrorCode.OUT_OF_MEMORY)
    assert "out of device memory" in failure.message
    assert len(answers(steps)["new"]) == 40
    assert core.scheduler.state.block_pool.num_used == 0
    assert not runner.resident or runner.plans[-1].evicted


def test_async_scheduling_refuses_draft_tokens():
    with pytest.raises(ValueError, match="async_scheduling: expected False with max_draft_tokens > 0"):
        make_core(async_scheduling=True, max_draft_tokens=3)
