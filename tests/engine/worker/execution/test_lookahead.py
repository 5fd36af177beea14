"""A real model with async scheduling and device sampling answers as it does without."""

import re
import string
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from glimpse.engine.core.core import Core
from glimpse.engine.core.plan import PENDING_TOKEN_ID, InFlightStep, StepPlan
from glimpse.engine.errors import EngineErrorCode
from glimpse.engine.protocol.config import EngineConfig
from glimpse.engine.protocol.messages import FinishReason, Generate, Step
from glimpse.engine.protocol.sampling_params import (
    Grammar,
    GrammarKind,
    GrammarTrigger,
    ReasoningBudget,
    ReasoningTags,
    SamplingParams,
)
from glimpse.engine.worker.execution.runner import ModelRunner
from glimpse.engine.worker.loading import build_runner, load_engine
from tests.checkpoints.tokenizer import PLAIN_TOKENS
from tests.engine.checking_runner import run_until_idle
from tests.engine.harness import make_prompt, request_of

TOKEN_BYTES = 512
PROMPTS = [make_prompt(seed, 4 + 3 * seed, (56, 84), 9, (28, 112), 3) for seed in range(3)]
TEXTS = [make_prompt(seed, 20) for seed in range(10, 14)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
SEEDED = SamplingParams(temperature=0.9, top_p=0.9, seed=5, max_tokens=24, logprobs=2)
FLAT = SamplingParams(temperature=4.0, seed=6, max_tokens=24)
ENDING = SamplingParams(temperature=0.7, seed=7, max_tokens=24, stop_token_ids=tuple(range(64, 91)))
BIASED = SamplingParams(temperature=0.7, seed=8, max_tokens=12, presence_penalty=1.0)
THINKING = SamplingParams(
    seed=10,
    max_tokens=24,
    reasoning_budget=ReasoningBudget(
        tags=ReasoningTags(opening="<think>", closing="</think>", is_open=True),
        max_tokens=7,
        closing_token_ids=tuple(map(PLAIN_TOKENS.index, "</think>")),
    ),
)
CALLING = SamplingParams(
    temperature=0.9,
    seed=11,
    max_tokens=24,
    ignore_eos=True,
    grammar=Grammar(
        kind=GrammarKind.REGEX,
        text="[^a-z]*[a-z]+[0-9]{3}",
        trigger=GrammarTrigger(texts=tuple(string.ascii_lowercase)),
    ),
)
IN_GRAMMAR = SamplingParams(seed=9, max_tokens=12, grammar=Grammar(kind=GrammarKind.REGEX, text="[a-c]{8,}"))


def load_core(path: Path, monkeypatch: pytest.MonkeyPatch, *, ahead: bool, **options: Any) -> Core:
    for module in (build_runner, load_engine):
        monkeypatch.setattr(module, "uses_async_scheduling", lambda _config, _device: ahead)
    # How prompts are divided depends on how long steps take: here, none takes any time.
    monkeypatch.setattr(load_engine, "Core", partial(Core, clock=lambda: 0.0))
    options = {"kv_cache_bytes": 8 << 20, "block_size": 8, "backend": "torch", **options}
    config = EngineConfig(model_path=str(path), device="cpu", dtype="float32", num_threads=1, **options)
    return load_engine.load_core(config, on_progress=lambda stage, fraction: None).core


def outcomes_of(steps: Sequence[Step]) -> dict[str, tuple[list[int], list[float], list[FinishReason], list[int]]]:
    """Returns tokens, log-probabilities, finish reasons and cached tokens of each request id."""
    found: dict[str, tuple[list[int], list[float], list[FinishReason], list[int]]] = {}
    for event in (event for step in steps for event in step.events):
        token_ids, logprobs, finishes, cached = found.setdefault(event.request_id, ([], [], [], []))
        token_ids += event.token_ids
        logprobs += [each.logprob for each in event.logprobs]
        finishes += [event.finish] if event.finish else []
        cached += [event.stats.num_cached_tokens] if event.stats.num_cached_tokens else []
    return found


def run(core: Core, requests: Sequence[Generate]) -> list[Step]:
    steps: list[Step] = []
    for each in requests:
        core.submit(each)
        steps.append(core.step())
    return steps + run_until_idle(core)


@pytest.mark.parametrize(
    ("samplings", "options"),
    [
        ([GREEDY, GREEDY, GREEDY], {}),
        ([SEEDED, FLAT, ENDING], {}),
        ([SEEDED, GREEDY, BIASED], {}),
        ([ENDING, IN_GRAMMAR, FLAT], {"max_batch_tokens": 7}),
        ([SEEDED, THINKING, GREEDY], {}),
        ([CALLING, SEEDED, CALLING], {}),
        ([CALLING, SEEDED, CALLING], {"kv_cache_bytes": 11 * 8 * TOKEN_BYTES, "max_model_len": 80}),
        ([ENDING, SEEDED, GREEDY], {"prefix_caching": False}),
        ([GREEDY, SEEDED, ENDING], {"kv_cache_bytes": 11 * 8 * TOKEN_BYTES, "max_model_len": 80}),
        ([GREEDY, SEEDED, ENDING], {"encoder_cache_bytes": 1}),
    ],
)
def test_async_answers_equal_synchronous_ones(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, samplings: list[SamplingParams], options: dict[str, Any]
):
    requests = [
        request_of(str(index), prompt, samplings[index % 3])
        for index, prompt in enumerate([*PROMPTS, *TEXTS, *PROMPTS])
    ]
    step_by_step, ahead = (
        run(load_core(tiny_checkpoint, monkeypatch, ahead=ahead, **options), requests) for ahead in (False, True)
    )
    expected, outcomes = outcomes_of(step_by_step), outcomes_of(ahead)
    assert outcomes.keys() == expected.keys()
    for name, (token_ids, logprobs, finishes, _) in outcomes.items():
        assert (token_ids, finishes) == (expected[name][0], expected[name][2])
        # How prompts are divided depends on time, and the last bits on how they are divided.
        assert logprobs == pytest.approx(expected[name][1], abs=1e-4)
    if "kv_cache_bytes" in options:
        assert sum(step.stats.num_preemptions for step in ahead) > 0
    elif options.get("prefix_caching", True):
        assert outcomes_of(ahead)["7"][3], "the same prompt was computed before"


def test_grammar_with_a_trigger_constrains_the_next_token(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch):
    core = load_core(tiny_checkpoint, monkeypatch, ahead=True)
    samplings = [replace(CALLING, seed=seed, max_tokens=60) for seed in range(8)]
    requests = [request_of(str(index), TEXTS[index % 4], sampling) for index, sampling in enumerate(samplings)]
    found = outcomes_of(run(core, requests))
    texts = [text_of(token_ids) for token_ids, _, (finish,), _ in found.values() if finish is FinishReason.STOP]
    assert len(texts) > 4
    assert all(re.fullmatch("[^a-z]*[a-z]+[0-9]{3}", text) for text in texts)
    for token_ids, _, (finish,), _ in found.values():
        assert finish is FinishReason.STOP or not re.search("[a-z]", text_of(token_ids[:50]))


def text_of(token_ids: Sequence[int]) -> str:
    """Returns the text of an answer without its end token."""
    return "".join(PLAIN_TOKENS[token_id] for token_id in token_ids if token_id < len(PLAIN_TOKENS))


def test_cancel_does_not_change_other_answers(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch):
    core = load_core(tiny_checkpoint, monkeypatch, ahead=True)
    requests = [request_of(str(index), prompt, SEEDED) for index, prompt in enumerate(PROMPTS)]
    expected = outcomes_of(run(core, requests))
    for each in requests:
        core.submit(each)
    steps = [core.step() for _ in range(4)]
    core.cancel("1")
    steps += run_until_idle(core)
    found = outcomes_of(steps)
    assert found["1"][2] == [FinishReason.CANCELLED]
    assert (found["0"][0], found["2"][0]) == (expected["0"][0], expected["2"][0])


def out_of_memory(model: torch.nn.Module, failing: set[int]) -> torch.nn.Module:
    """Makes a model run out of memory in the steps of these numbers."""
    numbers = count(1)

    def fail(*_: Any) -> None:
        if next(numbers) in failing:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    model.register_forward_hook(fail)
    return model


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(("failing", "lost"), [({2}, "1"), ({3}, "2"), ({5}, "2"), ({4, 5}, "12")])
def test_out_of_memory_ends_one_request_and_no_other_changes(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, ahead: bool, failing: set[int], lost: str
):
    core = load_core(tiny_checkpoint, monkeypatch, ahead=ahead)
    samplings = [SEEDED, GREEDY, BIASED]
    requests = [request_of(str(index), prompt, samplings[index]) for index, prompt in enumerate(PROMPTS)]
    expected = outcomes_of(run(core, requests))
    load_model = load_engine.load_model
    monkeypatch.setattr(
        load_engine, "load_model", lambda *args, **options: out_of_memory(load_model(*args, **options), failing)
    )
    core = load_core(tiny_checkpoint, monkeypatch, ahead=ahead, prefix_caching=False)
    steps: list[Step] = []
    for each in requests:
        core.submit(each)
        steps.append(core.step())
        if ahead:  # each prompt is in the step of the same number
            steps.append(core.step())
    steps += run_until_idle(core)
    errors = {event.request_id: event.error for step in steps for event in step.events if event.error}
    assert set(errors.values()) == {EngineErrorCode.OUT_OF_MEMORY}
    assert len(errors) == len(failing)
    if not ahead:
        assert "".join(sorted(errors)) == lost
    found = outcomes_of(steps)
    for name, own in found.items():
        assert own[0] == expected[name][0] if name not in errors else own[2] == [FinishReason.ERROR]
    assert core.scheduler.state.block_pool.num_used == 0


def test_pending_tokens_stay_on_the_device(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch):
    plans: list[StepPlan] = []
    launch = ModelRunner.launch

    def noted(runner: ModelRunner, plan: StepPlan) -> InFlightStep:
        plans.append(plan)
        return launch(runner, plan)

    monkeypatch.setattr(ModelRunner, "launch", noted)
    core = load_core(tiny_checkpoint, monkeypatch, ahead=True)
    run(core, [request_of("0", TEXTS[0], GREEDY)])
    decodes = [chunk.token_ids for plan in plans for chunk in plan.chunks if len(chunk.token_ids) == 1]
    assert decodes == [(PENDING_TOKEN_ID,)] * 23
