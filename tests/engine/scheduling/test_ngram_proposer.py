"""Speculative decoding with n-grams: proposals change the number of steps but no answer."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glimpse.engine.config import EngineConfig, Speculative
from glimpse.engine.execution.sampler import SequenceSampler, sample, sample_with_draft_tokens
from glimpse.engine.loading.load_engine import load_core
from glimpse.engine.protocol import FinishReason, Generate, TokenEvent
from glimpse.engine.sampling_params import SamplingParams
from glimpse.engine.scheduling.ngram_proposer import NgramProposer
from tests.engine.checking_runner import EOS, answers, generate, make_core, run_until_idle

VOCAB_SIZE = 12


@pytest.mark.parametrize(
    ("token_ids", "max_tokens", "draft_token_ids"),
    [
        ([], 3, ()),
        ([1, 2, 3], 3, ()),
        ([1, 2, 3, 4, 5], 3, ()),
        ([1, 2, 3, 4, 5, 1, 2, 3], 9, (4, 5, 1, 2, 3)),
        ([1, 2, 3, 4, 5, 1, 2, 3], 2, (4, 5)),
        ([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], 1, (5,)),
        ([7, 7, 7, 7], 3, (7,)),
    ],
)
def test_proposes_what_followed_the_last_occurrence(
    token_ids: list[int], max_tokens: int, draft_token_ids: tuple[int, ...]
):
    assert NgramProposer().propose(token_ids, max_tokens) == draft_token_ids


@given(token_ids=st.lists(st.integers(0, 2), max_size=60), steps=st.lists(st.integers(1, 5), min_size=1, max_size=12))
def test_proposals_do_not_depend_on_earlier_calls(token_ids: list[int], steps: list[int]):
    proposer, end = NgramProposer(), 0
    for step in steps:
        end += step
        assert proposer.propose(token_ids[:end], 4) == NgramProposer().propose(token_ids[:end], 4)


def run_script(
    script: Sequence[int],
    sampling: SamplingParams,
    *,
    max_draft_tokens: int,
    block_size: int = 4,
    max_batch_tokens: int = 64,
) -> tuple[list[TokenEvent], int]:
    """Runs a request whose answer is the script. Returns its events and the number of steps."""
    core, runner = make_core(
        num_blocks=-(-80 // block_size),
        block_size=block_size,
        max_model_len=80,
        max_batch_tokens=max_batch_tokens,
        max_draft_tokens=max_draft_tokens,
    )
    runner.script = list(script)
    core.submit(generate("r", [1, 2], sampling=sampling))
    steps = run_until_idle(core)
    assert core.scheduler.block_pool.num_used == 0
    return [event for step in steps for event in step.events], len(steps)


def tokens_of(events: Sequence[TokenEvent]) -> list[int]:
    return [token_id for event in events for token_id in event.token_ids]


def test_repetition_takes_fewer_steps():
    sampling = SamplingParams(max_tokens=40)
    script = [3, 4, 5, 6] * 10
    plain, num_plain = run_script(script, sampling, max_draft_tokens=0)
    speculative_events, num_speculative = run_script(script, sampling, max_draft_tokens=7)
    assert tokens_of(speculative_events) == tokens_of(plain) == script
    assert (num_plain, num_speculative <= 16) == (41, True)
    assert [event.finish for event in speculative_events if event.finish] == [FinishReason.LENGTH]


def test_stats_count_draft_and_accepted_tokens():
    core, runner = make_core(max_draft_tokens=3)
    runner.script = [3, 4, 5, 3, 4, 5, 3, 6, 6]
    core.submit(generate("r", [1, 2], sampling=SamplingParams(max_tokens=9)))
    stats = [step.stats for step in run_until_idle(core)]
    assert sum(step.num_generated_tokens for step in stats) == 9
    # After 3 4 5 occurred twice, 3 4 is proposed, because the answer has room for two tokens. Only the 3 is accepted.
    assert sum(step.num_accepted_tokens for step in stats) == 1
    assert sum(step.num_draft_tokens for step in stats) == 2


def test_end_token_ends_the_answer_before_further_draft_tokens():
    script = [3, 4, 5, EOS - 1, 3, 4, 5, EOS, 3, 4, 5, 6]
    events, _ = run_script(script, SamplingParams(max_tokens=40), max_draft_tokens=7)
    assert (tokens_of(events), events[-1].finish) == (script[:8], FinishReason.STOP)


def test_end_token_is_never_proposed():
    sampling = SamplingParams(max_tokens=20, stop_token_ids=(6,), min_tokens=12)
    script = [3, 4, 5, 6] * 5
    events, _ = run_script(script, sampling, max_draft_tokens=7)
    assert (tokens_of(events), events[-1].finish) == (script[:16], FinishReason.STOP)


@settings(max_examples=150, deadline=None)
@given(
    script=st.lists(st.integers(1, 2), min_size=60, max_size=60),
    max_tokens=st.integers(1, 60),
    max_draft_tokens=st.integers(1, 7),
    block_size=st.integers(1, 5),
    max_batch_tokens=st.integers(1, 12),
)
def test_draft_tokens_change_no_answer(
    script: list[int], max_tokens: int, max_draft_tokens: int, block_size: int, max_batch_tokens: int
):
    events, num_steps = run_script(
        script,
        SamplingParams(max_tokens=max_tokens),
        max_draft_tokens=max_draft_tokens,
        block_size=block_size,
        max_batch_tokens=max_batch_tokens,
    )
    assert tokens_of(events) == script[:max_tokens]
    assert num_steps <= max_tokens + 3


def test_large_batches_have_no_draft_tokens():
    core, runner = make_core(num_blocks=200, max_sequences=20, max_draft_tokens=7)
    for index in range(16):
        core.submit(generate(str(index), [1, 1, 1, 1], sampling=SamplingParams(max_tokens=9, ignore_eos=True)))
    run_until_idle(core)
    assert not any(chunk.num_draft_tokens for plan in runner.plans if len(plan.chunks) == 16 for chunk in plan.chunks)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000),
    draft_token_ids=st.lists(st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=4), min_size=1, max_size=4),
    sampling=st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 0.5, 3.0]),
        top_k=st.sampled_from([0, 2, 3]),
        top_p=st.sampled_from([1.0, 0.7]),
        presence_penalty=st.sampled_from([0.0, 2.0]),
        repetition_penalty=st.sampled_from([1.0, 1.5]),
        min_tokens=st.integers(0, 3),
        seed=st.integers(0, 1000),
        logprobs=st.sampled_from([None, 2]),
    ),
)
def test_samples_with_draft_tokens_equal_those_without(
    seed: int, draft_token_ids: list[list[int]], sampling: SamplingParams
):
    random = torch.Generator().manual_seed(seed)
    rows = [torch.randn(1 + len(own), VOCAB_SIZE, generator=random) * 3 for own in draft_token_ids]

    def samplers() -> list[SequenceSampler]:
        return [SequenceSampler(sampling, prompt_token_ids=[1, 2], eos_token_ids=[0]) for _ in draft_token_ids]

    expected: list[list[int]] = []
    for sampler, own_rows, own in zip(samplers(), rows, draft_token_ids, strict=True):
        tokens: list[int] = []
        for row, draft_token_id in zip(own_rows, [*own, None], strict=True):
            tokens.append(sample(row[None].clone(), [sampler])[0].token_id)
            if tokens[-1] != draft_token_id:
                break
        expected.append(tokens)
    samples = sample_with_draft_tokens(torch.cat(rows), samplers(), draft_token_ids)
    assert [[chosen.token_id for chosen in own] for own in samples] == expected
    assert all((chosen.logprob is None) == (sampling.logprobs is None) for own in samples for chosen in own)


@pytest.mark.parametrize("temperature", [0.0, 0.3])
def test_model_gives_the_same_answers_in_fewer_steps(tiny_checkpoint: Path, temperature: float):
    def run(speculative: Speculative) -> tuple[dict[str, list[int]], int]:
        config = EngineConfig(
            model_path=str(tiny_checkpoint),
            device="cpu",
            dtype="float32",
            block_size=8,
            kv_cache_bytes=1 << 22,
            speculative=speculative,
        )
        core = load_core(config, on_progress=lambda stage, fraction: None).core
        for index in range(2):
            bias = dict.fromkeys((65 + index, 66 + index), 20.0)
            sampling = SamplingParams(max_tokens=60, temperature=temperature, seed=1, ignore_eos=True, logit_bias=bias)
            core.submit(Generate(request_id=str(index), token_ids=[70, 71, 72, index] * 4, sampling=sampling))
        steps = run_until_idle(core)
        return answers(steps), len(steps)

    plain, num_plain = run("off")
    speculative_answers, num_speculative = run("ngram")
    assert speculative_answers == plain
    assert num_speculative < num_plain
