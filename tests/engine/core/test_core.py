"""The core: how requests are accepted, answered and ended."""

import logging
from dataclasses import replace

import msgspec
import pytest

from glimpse.engine.core.core import Core
from glimpse.engine.core.plan import CompletedStep, Sample, StepPlan, StepResult
from glimpse.engine.core.request import ModelSpec
from glimpse.engine.core.step_pipeline import Runner
from glimpse.engine.errors import EngineErrorCode
from glimpse.engine.protocol.media import Embeddings
from glimpse.engine.protocol.messages import FinishReason, Generate, MediaInput, TokenEvent, TokenLogprobs
from glimpse.engine.protocol.sampling_params import SamplingParams
from tests.engine.checking_runner import (
    EOS,
    LIMITS,
    PLACEHOLDER,
    VOCAB_SIZE,
    answers,
    events_of,
    generate,
    image_input,
    make_core,
    num_pinned,
    run_until_idle,
)


def refusal(request: Generate, max_waiting: int = 100) -> TokenEvent:
    """The only event of a request that is refused."""
    core, runner = make_core(num_blocks=4, block_size=4, max_waiting=max_waiting)
    core.submit(request)
    assert core.has_work
    [event] = core.step().events
    assert not core.has_work
    assert not runner.plans, "a refused request must not reach the runner"
    assert event.finish is FinishReason.ERROR
    return event


def image_with_key(key_bytes: bytes) -> MediaInput:
    whole = image_input("cat", 0, 2)
    return MediaInput(span=replace(whole.span, key=key_bytes), content=whole.content)


def embedded(name: str, num_values: int) -> MediaInput:
    """Returns an image of 2 tokens whose embeddings have `num_values` values."""
    data = memoryview(bytes(4 * num_values))
    return msgspec.structs.replace(image_input(name, 0, 2), content=Embeddings(dtype="float32", data=data))


@pytest.mark.parametrize("num_tokens", [16, 17])
@pytest.mark.parametrize(
    ("media", "of_media"),
    [((), ""), ((image_input("a", 1, 6), image_input("b", 8, 3)), ", 9 of them of media")],
    ids=["text", "media"],
)
def test_refuses_prompt_that_leaves_no_room_for_an_answer(
    num_tokens: int, media: tuple[MediaInput, ...], of_media: str
):
    event = refusal(generate("long", [1] * num_tokens, *media))
    assert event.error is EngineErrorCode.PROMPT_TOO_LONG
    assert event.message == (
        f"the prompt has {num_tokens} tokens{of_media}; the model's context window is 16 tokens "
        f"(prompt and answer together): shorten the prompt by {num_tokens - 15} or more"
    )


@pytest.mark.parametrize(
    ("request_", "code", "message"),
    [
        (generate("r", []), EngineErrorCode.INTERNAL, "expected at least one token"),
        (generate("r", [1, 8]), EngineErrorCode.INTERNAL, "token_ids: expected ids from 0 to 7, got 8"),
        (generate("r", [-1, 1]), EngineErrorCode.INTERNAL, "got -1"),
        (generate("r", [0, 0], image_input("a", 1, 2)), EngineErrorCode.INTERNAL, "outside the prompt of 2 tokens"),
        (generate("r", [0, 0], image_input("a", -1, 2)), EngineErrorCode.INTERNAL, "outside the prompt"),
        (generate("r", [0, 0], image_input("a", 0, 0)), EngineErrorCode.INTERNAL, "outside the prompt"),
        (
            generate("r", [0, 0, 0], image_input("a", 1, 2), image_input("b", 0, 2)),
            EngineErrorCode.INTERNAL,
            "overlap another medium",
        ),
        (generate("r", [0, 0], image_input("a", 0, 2, ((1, 2),))), EngineErrorCode.INTERNAL, "exceed its 2 tokens"),
        (generate("r", [0, 0], image_input("a", 0, 2, ((0, 2), (1, 1)))), EngineErrorCode.INTERNAL, "overlap"),
        (generate("r", [0, 0], image_input("a", 0, 2, ((-1, 1),))), EngineErrorCode.INTERNAL, "overlap"),
        (generate("r", [0, 0], image_input("a", 0, 2, ((0, 0),))), EngineErrorCode.INTERNAL, "empty"),
        (generate("r", [0, 0], image_with_key(b"short")), EngineErrorCode.INTERNAL, "expected 32 bytes, got 5"),
        (
            generate("r", [0, 0], embedded("a", 3)),
            EngineErrorCode.INTERNAL,
            "expected 2 values for each of the 2 placeholder tokens, got 3 values",
        ),
        (generate("r", [0, 0], embedded("a", 8)), EngineErrorCode.INTERNAL, "got 8 values"),
        (
            generate("r", [1], sampling=SamplingParams(logit_bias={9: 1.0})),
            EngineErrorCode.UNSUPPORTED,
            "'logit_bias': expected token ids of the vocabulary, from 0 to 7, got 9",
        ),
        (
            generate("r", [1], sampling=SamplingParams(stop_token_ids=(-2,))),
            EngineErrorCode.UNSUPPORTED,
            "'stop_token_ids': expected token ids of the vocabulary, from 0 to 7, got -2",
        ),
    ],
)
def test_refuses_requests_that_the_model_cannot_compute(request_: Generate, code: EngineErrorCode, message: str):
    event = refusal(request_)
    assert event.error is code
    assert message in event.message


def test_refuses_requests_when_the_queue_is_full():
    core, _ = make_core(max_waiting=2)
    for name in ("0", "1", "2"):
        core.submit(generate(name, [1, 2]))
    events = {event.request_id: event for event in core.step().events}
    assert events["2"].error is EngineErrorCode.OVERLOADED
    assert "2 requests are waiting" in events["2"].message
    assert {events["0"].finish, events["1"].finish} == {FinishReason.LENGTH}


def test_refuses_request_id_in_use():
    core, runner = make_core()
    runner.script = [1, 2, 3]
    core.submit(generate("same", [1], sampling=SamplingParams(max_tokens=3)))
    core.step()
    core.submit(generate("same", [2]))
    steps = run_until_idle(core)
    events = [event for step in steps for event in step.events]
    assert [event.error for event in events] == [EngineErrorCode.INTERNAL, None, None]
    assert answers(steps) == {"same": [2, 3]}


def test_request_id_can_be_reused_after_its_end():
    core, _ = make_core()
    for _ in range(2):
        core.submit(generate("same", [1]))
        assert [event.finish for event in core.step().events] == [FinishReason.LENGTH]


@pytest.mark.parametrize(
    ("sampling", "script", "expected", "finish"),
    [
        (SamplingParams(max_tokens=3), [1, 2, 3, 4], [1, 2, 3], FinishReason.LENGTH),
        (SamplingParams(max_tokens=5), [1, EOS], [1, EOS], FinishReason.STOP),
        (SamplingParams(max_tokens=2), [1, EOS], [1, EOS], FinishReason.STOP),
        (SamplingParams(max_tokens=3, ignore_eos=True), [1, EOS, 2], [1, EOS, 2], FinishReason.LENGTH),
        (SamplingParams(max_tokens=5, stop_token_ids=(4,)), [1, 4], [1, 4], FinishReason.STOP),
        (
            SamplingParams(max_tokens=5, stop_token_ids=(EOS,), ignore_eos=True),
            [1, EOS],
            [1, EOS],
            FinishReason.STOP,
        ),
        (SamplingParams(max_tokens=5, min_tokens=2), [EOS, EOS, EOS], [EOS, EOS, EOS], FinishReason.STOP),
        (SamplingParams(max_tokens=2, min_tokens=4), [EOS, EOS], [EOS, EOS], FinishReason.LENGTH),
        # The prompt has 2 tokens, the window 16.
        (SamplingParams(max_tokens=99), [1] * 14, [1] * 14, FinishReason.LENGTH),
    ],
)
def test_answer_ends_at_end_token_stop_token_or_limit(
    sampling: SamplingParams, script: list[int], expected: list[int], finish: FinishReason
):
    core, runner = make_core(num_blocks=4, block_size=4)
    runner.script = script
    core.submit(generate("r", [1, 2], sampling=sampling))
    steps = run_until_idle(core)
    assert answers(steps) == {"r": expected}
    assert [event.finish for step in steps for event in step.events if event.finish] == [finish]


def test_cached_tokens_are_reported_with_first_token_and_finish():
    core, _ = make_core(block_size=4)
    sampling = SamplingParams(max_tokens=3, ignore_eos=True)
    core.submit(generate("cold", [1] * 10, sampling=sampling))
    cold = run_until_idle(core)
    core.submit(generate("warm", [1] * 10, sampling=sampling))
    warm = run_until_idle(core)
    assert [event.stats.num_cached_tokens for step in cold for event in step.events] == [0, 0, 0]
    assert [event.stats.num_cached_tokens for step in warm for event in step.events] == [8, 0, 8]
    assert [step.stats.num_cached_tokens for step in warm] == [8, 0, 0, 0]
    assert [step.stats.num_prompt_tokens for step in warm] == [2, 0, 0, 0]
    assert list(answers(cold).values()) == list(answers(warm).values())


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_encoded_media_are_reported_with_first_token_and_finish(prefix_caching: bool):
    core, _ = make_core(block_size=4, prefix_caching=prefix_caching)
    sampling = SamplingParams(max_tokens=2, ignore_eos=True)
    media = [image_input("cat", 1, 3), image_input("cat", 4, 3), image_input("dog", 7, 3)]
    for name in ("cold", "warm"):
        core.submit(generate(name, [1, *[PLACEHOLDER] * 9, 1], *media, sampling=sampling))
        reported = [event.stats.encoded_media for event in events_of(core)]
        # The second cat equals the first one.
        assert reported == ([[0, 2], [0, 2]] if name == "cold" else [[], []])


def test_of_equal_media_the_one_that_no_prefix_holds_is_encoded():
    core, _ = make_core(block_size=4, max_model_len=42)
    sampling = SamplingParams(max_tokens=1, ignore_eos=True)
    cat, dog, again = (image_input(name, start, 3) for name, start in (("cat", 1), ("dog", 4), ("cat", 7)))
    core.submit(generate("cold", [1, *[PLACEHOLDER] * 3, 1], cat, sampling=sampling))
    run_until_idle(core)
    # Another output takes the place of the first one; its keys and values stay.
    core.submit(generate("other", [2, *[PLACEHOLDER] * 40], image_input("bird", 1, 40), sampling=sampling))
    run_until_idle(core)
    core.submit(generate("warm", [1, *[PLACEHOLDER] * 9, 1], cat, dog, again, sampling=sampling))
    (event,) = events_of(core)
    assert (event.stats.num_cached_tokens, event.stats.encoded_media) == (4, [1, 2])


def test_without_prefix_caching_nothing_is_cached():
    core, runner = make_core(block_size=4, prefix_caching=False)
    for name in ("0", "1"):
        core.submit(generate(name, [1] * 10))
        run_until_idle(core)
    assert [len(chunk.token_ids) for plan in runner.plans for chunk in plan.chunks] == [10, 10]


def test_stats_describe_the_state_after_the_step():
    core, _ = make_core(block_size=4, max_sequences=1)
    for name in ("0", "1"):
        prompt = [1, *[PLACEHOLDER] * 5]
        core.submit(
            generate(name, prompt, image_input("a", 1, 5), sampling=SamplingParams(max_tokens=2, ignore_eos=True))
        )
    stats = core.step().stats
    assert (stats.num_running, stats.num_waiting, stats.num_used_blocks) == (1, 1, 2)
    assert (stats.num_prompt_tokens, stats.num_generated_tokens, stats.num_encoded_media) == (6, 1, 1)
    stats = core.step().stats
    assert (stats.num_running, stats.num_waiting, stats.num_used_blocks) == (0, 1, 0)
    assert (stats.num_prompt_tokens, stats.num_generated_tokens, stats.num_encoded_media) == (0, 1, 0)


def test_cancelled_running_request_is_gone_within_one_step():
    core, runner = make_core(max_batch_tokens=4, block_size=4)
    core.submit(generate("0", [1, *[PLACEHOLDER] * 9], image_input("cat", 1, 9)))
    core.step()
    core.cancel("0")
    step = core.step()
    assert [(event.request_id, event.finish) for event in step.events] == [("0", FinishReason.CANCELLED)]
    assert (step.stats.num_running, step.stats.num_used_blocks) == (0, 0)
    assert runner.plans[-1].ended == (0,)
    assert num_pinned(core.scheduler.state.encoder_cache) == 0
    assert not core.has_work


def test_last_event_has_the_prompt_tokens_that_were_computed():
    core, _ = make_core(max_batch_tokens=4, block_size=4)
    core.submit(generate("cancelled", [1] * 10))
    core.step()
    core.step()
    core.cancel("cancelled")
    assert [event.stats.num_computed_prompt_tokens for event in core.step().events] == [8]
    core.submit(generate("finished", [1] * 10))
    (event,) = events_of(core)
    assert (event.stats.num_computed_prompt_tokens, event.stats.num_cached_tokens) == (10, 8)


def test_cancelled_waiting_request_never_reaches_the_runner():
    core, runner = make_core()
    core.submit(generate("0", [1]))
    core.cancel("0")
    (event,) = core.step().events
    assert (event.finish, event.stats.num_computed_prompt_tokens) == (FinishReason.CANCELLED, 0)
    assert not runner.plans
    assert not core.has_work


def test_cancelled_preempted_request_is_forgotten_by_the_runner():
    core, runner = make_core(num_blocks=6, block_size=4, max_model_len=20)
    for name in ("0", "1"):
        core.submit(generate(name, [int(name)] * 8, sampling=SamplingParams(max_tokens=8, ignore_eos=True)))
    while core.step().stats.num_preemptions == 0:
        pass
    core.cancel("1")
    step = core.step()
    assert FinishReason.CANCELLED in [event.finish for event in step.events]
    assert runner.plans[-1].ended == (1,)
    assert list(runner.sequences) == [0]


def test_cancel_ignores_unknown_and_ended_requests():
    core, _ = make_core()
    core.cancel("unknown")
    assert not core.has_work
    core.submit(generate("0", [1]))
    core.step()
    core.cancel("0")
    assert run_until_idle(core)[-1].events == []


def test_end_of_the_last_request_reaches_the_runner():
    core, runner = make_core()
    core.submit(generate("0", [1]))
    core.step()
    assert core.has_work
    core.step()
    assert runner.plans[-1] == StepPlan(ended=(0,))
    assert not core.has_work


def test_shutdown_cancels_all_requests():
    core, _ = make_core(max_sequences=1)
    for name in ("0", "1"):
        core.submit(generate(name, [1, 2], sampling=SamplingParams(max_tokens=9, ignore_eos=True)))
    core.step()
    core.submit(generate("0", [1]))
    step = core.shutdown()
    assert sorted((event.request_id, event.finish) for event in step.events) == [
        ("0", FinishReason.CANCELLED),
        ("0", FinishReason.ERROR),
        ("1", FinishReason.CANCELLED),
    ]
    assert (step.stats.num_running, step.stats.num_waiting, step.stats.num_used_blocks) == (0, 0, 0)


@pytest.mark.parametrize("fails", ["before", "after"])
def test_failed_step_ends_only_its_own_requests(fails: str, caplog: pytest.LogCaptureFixture):
    core, runner = make_core(max_sequences=1)
    sampling = SamplingParams(max_tokens=3, ignore_eos=True)
    for name in ("0", "1"):
        core.submit(generate(name, [PLACEHOLDER] * 9, image_input(name, 0, 9), sampling=sampling))
    runner.fails = fails
    with caplog.at_level(logging.CRITICAL + 1, logger="glimpse.engine.core.step_pipeline"):
        step = core.step()
    [event] = step.events
    assert (event.request_id, event.finish, event.error) == ("0", FinishReason.ERROR, EngineErrorCode.INTERNAL)
    assert event.message == "the engine failed while it computed this request"
    assert (step.stats.num_used_blocks, step.stats.num_prompt_tokens) == (0, 0)
    steps = run_until_idle(core)
    assert len(answers(steps)["1"]) == 3
    assert runner.plans[1].ended == (0,)
    assert runner.plans[1].evicted == tuple(item.key for item in runner.plans[0].encode)


def test_blocks_of_a_failed_step_are_not_found():
    core, runner = make_core(block_size=4)
    runner.fails = "after"
    core.submit(generate("0", [1] * 12))
    core.step()
    core.submit(generate("1", [1] * 12))
    run_until_idle(core)
    assert runner.plans[1].chunks[0].start == 0


def test_ended_sequences_of_a_failed_step_are_sent_again():
    core, runner = make_core()
    core.submit(generate("0", [1]))
    core.step()
    core.submit(generate("1", [1]))
    runner.fails = "before"
    core.step()
    core.step()
    assert set(runner.plans[-1].ended) == {0, 1}
    assert not runner.sequences


class BrokenRunner:
    """Always fails."""

    def launch(self, plan: StepPlan) -> CompletedStep:
        raise RuntimeError("broken")


class SilentRunner:
    """Answers nothing."""

    def launch(self, plan: StepPlan) -> CompletedStep:
        return CompletedStep(StepResult())


class LogprobRunner:
    """Always samples the same token, with its log-probability."""

    def launch(self, plan: StepPlan) -> CompletedStep:
        sample = Sample(token_id=3, logprob=-0.5, top=((3, -0.5), (1, -2.0)))
        return CompletedStep(StepResult(samples={chunk.sequence_id: sample for chunk in plan.chunks}))


def core_over(runner: Runner) -> Core:
    return Core(
        runner=runner,
        model=ModelSpec(vocab_size=VOCAB_SIZE, encoder_row_width=2, eos_token_ids=(EOS,)),
        limits=replace(LIMITS, num_blocks=4, max_model_len=16, max_batch_tokens=16, max_sequences=4),
        max_waiting=4,
    )


@pytest.mark.parametrize("runner", [BrokenRunner(), SilentRunner()])
def test_permanently_broken_runner_ends_each_request(runner: Runner):
    core = core_over(runner)
    core.submit(generate("0", [1]))
    finishes = [event.finish for step in run_until_idle(core, max_steps=3) for event in step.events]
    assert finishes == [FinishReason.ERROR]


def test_logprobs_are_passed_through():
    core = core_over(LogprobRunner())
    core.submit(generate("0", [1], sampling=SamplingParams(max_tokens=1, logprobs=2)))
    [event] = core.step().events
    assert event.logprobs == [TokenLogprobs(logprob=-0.5, top=[(3, -0.5), (1, -2.0)])]
