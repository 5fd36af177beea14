"""Speculative decoding with n-grams: proposals change the number of steps but no answer."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glimpse.engine.core.draft_budget import MIN_CHANCE
from glimpse.engine.core.ngram_proposer import NgramProposer
from glimpse.engine.protocol.config import Backend, EngineConfig, Speculative
from glimpse.engine.protocol.messages import FinishReason, Generate, TokenEvent
from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.engine.worker.execution.sampler import SequenceSampler, sample, sample_with_draft_tokens
from glimpse.engine.worker.loading.load_engine import load_core
from tests.engine.checking_runner import EOS, answers, generate, make_core, run_until_idle, tokens_of
from tests.engine.levels import needs_kernels

VOCAB_SIZE = 12


@pytest.mark.parametrize(
    ("token_ids", "max_tokens", "draft_token_ids"),
    [
        ([], 3, ()),
        ([1, 2, 3], 3, ()),
        ([1, 2, 3, 4, 5], 3, ()),
        ([1, 2, 3, 4, 5, 1, 2, 3], 9, (4, 5, 1, 2, 3, 4, 5, 1, 2)),
        ([1, 2, 3, 4, 5, 1, 2, 3], 2, (4, 5)),
        ([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], 1, (5,)),
        ([7, 7, 7, 7], 3, (7, 7, 7)),
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
        assert proposer.chances(token_ids[:end], 4) == NgramProposer().chances(token_ids[:end], 4)


def test_chances_grow_with_right_predictions_and_shrink_with_wrong_ones():
    passage = [1, 2, 3, 4, 5, 6, 7, 8]
    fresh = NgramProposer().chances([*passage, 1, 2, 3], 3)
    repeated = NgramProposer().chances([*passage, *passage[:6]], 3)
    assert fresh[0] > fresh[1] > fresh[2]
    assert all(many > few for many, few in zip(repeated, fresh, strict=True))
    broken = [token_id for index in range(10, 26) for token_id in (1, 2, 3, index)]
    assert NgramProposer().chances([*broken, 1, 2, 3], 1)[0] < MIN_CHANCE < fresh[0]
    recovered = [*broken, *(token_id for _ in range(16) for token_id in (1, 2, 3, 9))]
    assert NgramProposer().chances([*recovered, 1, 2, 3], 1)[0] > fresh[0]


def test_repetitions_in_the_prompt_say_nothing_about_the_answer():
    token_ids = [1, 2, 3, 4] * 8
    assert NgramProposer(len(token_ids)).chances(token_ids, 2) == NgramProposer().chances([1, 2, 3, 4, 1, 2, 3], 2)
    assert NgramProposer(5).chances(token_ids, 2) != NgramProposer(len(token_ids)).chances(token_ids, 2)


def test_nothing_is_expected_of_a_new_ngram():
    assert NgramProposer().chances([1, 2, 3, 4, 5], 3) == []


def run_script(
    script: Sequence[int],
    sampling: SamplingParams,
    *,
    max_draft_tokens: int,
    adaptive_drafts: bool = False,
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
        adaptive_drafts=adaptive_drafts,
    )
    runner.script = list(script)
    core.submit(generate("r", [1, 2], sampling=sampling))
    steps = run_until_idle(core)
    assert core.scheduler.state.block_pool.num_used == 0
    return [event for step in steps for event in step.events], len(steps)


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


@given(
    script=st.lists(st.integers(1, 2), min_size=60, max_size=60),
    max_tokens=st.integers(1, 60),
    max_draft_tokens=st.integers(1, 7),
    adaptive_drafts=st.booleans(),
    block_size=st.integers(1, 5),
    max_batch_tokens=st.integers(1, 12),
)
def test_draft_tokens_change_no_answer(
    script: list[int],
    max_tokens: int,
    max_draft_tokens: int,
    adaptive_drafts: bool,
    block_size: int,
    max_batch_tokens: int,
):
    events, num_steps = run_script(
        script,
        SamplingParams(max_tokens=max_tokens),
        max_draft_tokens=max_draft_tokens,
        adaptive_drafts=adaptive_drafts,
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


@settings(max_examples=60)
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


@pytest.mark.parametrize("speculative", ["auto", "ngram"])
@pytest.mark.parametrize("temperature", [0.0, 0.3])
@pytest.mark.parametrize("backend", ["torch", pytest.param("native", marks=needs_kernels)])
def test_model_gives_the_same_answers_in_fewer_steps(
    tiny_checkpoint: Path, backend: Backend, temperature: float, speculative: Speculative
):
    def run(speculative: Speculative) -> tuple[dict[str, list[int]], int]:
        config = EngineConfig(
            model_path=str(tiny_checkpoint),
            device="cpu",
            dtype="bfloat16" if backend == "native" else "float32",
            backend=backend,
            block_size=32,
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
    speculative_answers, num_speculative = run(speculative)
    assert speculative_answers == plain
    assert num_speculative < num_plain
