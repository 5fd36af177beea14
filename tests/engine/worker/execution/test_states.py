"""Any interleaving of a model's steps gives the tokens of undisturbed runs, also where layers keep states or windows.

Prompts are divided into chunks, preempted, forked, cancelled and found in the cache, since blocks and states are few.
Draft tokens are right, wrong, or right for a while.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glimpse.engine.checkpoint.grammar.matcher import GrammarCompiler
from glimpse.engine.core import draft_budget
from glimpse.engine.core.core import Core
from glimpse.engine.core.limits import SchedulerLimits
from glimpse.engine.core.memory.sliding_window import SlidingWindow
from glimpse.engine.core.ngram_proposer import ModelProposer
from glimpse.engine.core.request import ModelSpec
from glimpse.engine.protocol.config import EngineConfig
from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.engine.worker.execution.runner import ModelRunner
from glimpse.engine.worker.loading.build_runner import LoadedShard
from glimpse.engine.worker.loading.load_engine import load_shard
from glimpse.engine.worker.tensors.kv_cache import CacheShape
from tests.checkpoints.qwen3_5 import make_qwen3_5_checkpoint
from tests.checkpoints.text import make_text_checkpoint
from tests.engine.checking_runner import answers, run_until_idle
from tests.engine.harness import Prompt, make_prompt, request_of

BLOCK_SIZE = 8
MAX_LEN = 96
MAX_TOKENS = 16
LONG, SHORT = make_prompt(0, 61), make_prompt(1, 5)
PROMPTS = [
    LONG,
    SHORT,
    make_prompt(2, 33),
    *(Prompt(token_ids=LONG.token_ids[:length] + SHORT.token_ids) for length in (20, 40, 61)),
]
"""Some begin alike, with and without the whole prompt of another."""


@pytest.fixture(scope="module", params=["qwen3_5", "lfm2", "gemma3", "gemma4", "mtp"])
def shard(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedShard:
    path, drafts = tmp_path_factory.mktemp("states"), "mtp" if request.param == "mtp" else "ngram"
    path = make_qwen3_5_checkpoint(path) if drafts == "mtp" else make_text_checkpoint(path, request.param)
    options: dict[str, Any] = {"backend": "torch", "num_threads": 1, "speculative": drafts}
    config = EngineConfig(model_path=str(path), device="cpu", dtype="float32", **options)
    return load_shard(config, rank=0, on_progress=lambda stage, fraction: None)


def make_core(
    shard: LoadedShard, *, num_spare_blocks: int, num_spare: int, max_batch_tokens: int, is_cached: bool
) -> Core:
    """`num_spare`: states, or blocks of sliding layers, beyond those of one sequence."""
    num_blocks = MAX_LEN // BLOCK_SIZE + num_spare_blocks
    text = shard.model.decoder.config
    window, num_states, num_sliding_blocks = 0, 0, 0
    if text.sliding is None:
        num_states = 1 + num_spare
    else:
        window = text.sliding.window
        of_step = SlidingWindow(num_tokens=window, block_size=BLOCK_SIZE).num_blocks(max_batch_tokens)
        num_sliding_blocks = min(of_step, MAX_LEN // BLOCK_SIZE) + num_spare
    memory = CacheShape.of(text).allocate(
        num_blocks,
        BLOCK_SIZE,
        shard.dtype,
        shard.device,
        num_states=num_states,
        num_sliding_blocks=num_sliding_blocks,
    )
    for tensor in (*(memory.states or ()), *(memory.sliding or ())):
        tensor.fill_(7.0)  # what is not written before it is read shows in answers
    runner = ModelRunner(
        model=shard.model,
        cache=memory,
        eos_token_ids=(),
        device=shard.device,
        dtype=shard.dtype,
        grammars=GrammarCompiler(shard.vocabulary),
    )
    limits = SchedulerLimits(
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        max_model_len=MAX_LEN,
        max_batch_tokens=max_batch_tokens,
        max_sequences=4,
        encoder_bytes_per_row=1,
        encoder_cache_bytes=0,
        prefix_caching=is_cached,
        max_decode_slowdown=100.0,
        max_draft_tokens=3,
        uses_mtp=text.uses_mtp,
        num_states=num_states,
        num_sliding_blocks=num_sliding_blocks,
        window=window,
    )
    spec = ModelSpec(vocab_size=shard.config.text.vocab_size, encoder_row_width=1, eos_token_ids=())
    return Core(runner=runner, model=spec, limits=limits, max_waiting=100)


@pytest.fixture(scope="module")
@torch.inference_mode()
def undisturbed(shard: LoadedShard) -> list[list[int]]:
    """The answers to all prompts, each computed alone."""
    found: list[list[int]] = []
    for prompt in PROMPTS:
        core = make_core(shard, num_spare_blocks=0, num_spare=0, max_batch_tokens=100, is_cached=False)
        core.submit(request_of("it", prompt, SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True)))
        found.append(answers(run_until_idle(core))["it"])
    return found


@dataclass(frozen=True, kw_only=True)
class Foresight:
    """Proposes the tokens of a known answer, but a wrong one for each third token."""

    known: Mapping[tuple[int, ...], Sequence[int]]
    """Prompt → answer."""
    num_prompt_tokens: int

    def chances(self, token_ids: Sequence[int], max_tokens: int) -> list[float]:
        return [1.0] * len(self.propose(token_ids, max_tokens))

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> tuple[int, ...]:
        answer = self.known[tuple(token_ids[: self.num_prompt_tokens])]
        first = len(token_ids) - self.num_prompt_tokens
        return tuple(
            token_id if index % 3 else token_id ^ 1
            for index, token_id in enumerate(answer[first : first + max_tokens], start=first)
        )


requests = st.tuples(
    st.integers(0, len(PROMPTS) - 1),
    st.sampled_from([1, 6, MAX_TOKENS]),
    st.integers(0, 3),
    st.sampled_from([None, None, 2]),
)
"""Prompt, tokens of the answer, steps before the next request, and the steps after which it is cancelled."""


@pytest.fixture
def foresight(undisturbed: list[list[int]]) -> Iterator[None]:
    """Draft tokens are those of `Foresight`, in place of repeated ones."""
    known = {tuple(prompt.token_ids): answer for prompt, answer in zip(PROMPTS, undisturbed, strict=True)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draft_budget, "NgramProposer", lambda num: Foresight(known=known, num_prompt_tokens=num))
        offer = ModelProposer.offer

        def offer_known(self: ModelProposer, token_ids: Sequence[int], own: tuple[int, ...]) -> None:
            prompt = max((each for each in known if tuple(token_ids[: len(each)]) == each), key=len)
            offer(self, token_ids, Foresight(known=known, num_prompt_tokens=len(prompt)).propose(token_ids, len(own)))

        patch.setattr(ModelProposer, "offer", offer_known)
        yield


@pytest.mark.usefixtures("foresight")
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    work=st.lists(requests, min_size=3, max_size=7),
    num_spare_blocks=st.integers(0, 8),
    num_spare=st.integers(0, 8),
    max_batch_tokens=st.sampled_from([4, 9, 30, 200]),
)
@torch.inference_mode()
def test_answers_are_those_of_undisturbed_runs(
    shard: LoadedShard,
    undisturbed: list[list[int]],
    work: list[tuple[int, int, int, int | None]],
    num_spare_blocks: int,
    num_spare: int,
    max_batch_tokens: int,
) -> None:
    core = make_core(
        shard,
        num_spare_blocks=num_spare_blocks,
        num_spare=num_spare,
        max_batch_tokens=max_batch_tokens,
        is_cached=True,
    )
    steps = []
    cancelled: set[str] = set()
    for number, (index, num_tokens, pause, cancel_after) in enumerate(work):
        sampling = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
        core.submit(request_of(str(number), PROMPTS[index], sampling))
        steps += [core.step() for _ in range(pause)]
        if cancel_after is not None and number >= cancel_after:
            core.cancel(str(number - cancel_after))
            cancelled.add(str(number - cancel_after))
    found = answers([*steps, *run_until_idle(core)])
    for number, (index, num_tokens, _, _) in enumerate(work):
        expected = undisturbed[index][:num_tokens]
        answer = found.get(str(number), [])
        assert answer == (expected[: len(answer)] if str(number) in cancelled else expected)
    state = core.scheduler.state
    assert state.block_pool.num_used == 0
    assert state.states is None or state.states.num_held == 0
    assert state.sliding_tables is None or state.sliding_tables.num_used == 0
