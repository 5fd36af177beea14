"""Tensor-parallel ranks, run as threads, compute the same as one rank with every quantization and backend."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.core.core import Core
from glimpse.engine.core.limits import SchedulerLimits
from glimpse.engine.core.plan import CompletedStep, StepPlan, StepResult
from glimpse.engine.core.request import ModelSpec
from glimpse.engine.protocol.config import Backend, DType, EngineConfig, Quantization
from glimpse.engine.protocol.media import MediaSpan
from glimpse.engine.protocol.messages import TokenEvent
from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.engine.worker.execution.runner import ModelRunner
from glimpse.engine.worker.loading.build_runner import LoadedShard
from glimpse.engine.worker.loading.load_engine import load_core, load_shard, make_runner
from glimpse.engine.worker.parallel.distributed_runner import shard_plan
from glimpse.engine.worker.parallel.group import join_group
from glimpse.media.kind import MediaKind
from glimpse.media.processing.audio import audio_from_samples
from tests.checkpoints.idefics3 import make_idefics3_checkpoint
from tests.checkpoints.llava import make_llava_checkpoint
from tests.checkpoints.lora import make_adapter
from tests.checkpoints.phi3v import make_phi3v_checkpoint
from tests.checkpoints.qwen2_audio import TOKEN_IDS, make_audio_checkpoint
from tests.checkpoints.qwen2_vl import make_checkpoint
from tests.checkpoints.text import make_text_checkpoint
from tests.engine.checking_runner import events_of
from tests.engine.harness import Prompt, make_prompt, request_of
from tests.engine.idefics3_prompts import tiled_prompt
from tests.engine.levels import needs_kernels
from tests.engine.llava_prompts import IMAGE, prompt_of
from tests.engine.phi3v_prompts import prompt_of as hd_prompt
from tests.media.audio import PROCESSING, noise

CHECKPOINT = partial(make_checkpoint, hidden=256)
"""A checkpoint wide enough for a rank's shard of a matrix to have whole groups of int4."""
PROMPT = make_prompt(3, 30, (56, 84), 9, (28, 112), 3)
KV_BYTES = 4 << 20


class ThreadedRunner:
    """Runs all ranks and returns the results of rank 0."""

    def __init__(self, runners: Sequence[ModelRunner], pool: ThreadPoolExecutor) -> None:
        self._runners = runners
        self._pool = pool

    def launch(self, plan: StepPlan) -> CompletedStep:
        first, *_ = self._pool.map(_execute, self._runners, shard_plan(plan, len(self._runners)))
        return CompletedStep(first)


def _execute(runner: ModelRunner, plan: StepPlan) -> StepResult:
    return runner.launch(plan).result()


def answer(core: Core, prompt: Prompt, max_tokens: int, adapter: str = "") -> list[TokenEvent]:
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, logprobs=5)
    core.submit(msgspec.structs.replace(request_of("r", prompt, sampling), adapter=adapter))
    return events_of(core)


def logprobs(events: Sequence[TokenEvent]) -> list[dict[int, float]]:
    """Returns the top logprobs at each position."""
    return [dict(place.top) for event in events for place in event.logprobs]


def core_of_threads(config: EngineConfig, rendezvous_file: Path, pool: ThreadPoolExecutor) -> Core:
    def load(rank: int) -> tuple[LoadedShard, ModelRunner]:
        shard = load_shard(config, rank=rank, on_progress=lambda _stage, _fraction: None)
        group = join_group(str(rendezvous_file), rank=rank, num_ranks=config.tensor_parallel_size, device=shard.device)
        return shard, make_runner(config, shard, group, on_progress=lambda _stage, _fraction: None)

    text = load_model_config(Path(config.model_path)).text
    shards, runners = zip(*pool.map(load, range(config.tensor_parallel_size)), strict=True)
    return Core(
        runner=ThreadedRunner(runners, pool),
        model=ModelSpec(
            vocab_size=text.vocab_size,
            encoder_row_width=text.encoder_row_width,
            eos_token_ids=(),
            adapters=shards[0].model.adapters.digests,
        ),
        limits=SchedulerLimits(
            num_blocks=runners[0].num_blocks,
            block_size=config.block_size,
            max_model_len=256,
            max_batch_tokens=256,
            max_sequences=4,
            encoder_bytes_per_row=4,
            encoder_cache_bytes=1 << 20,
            prefix_caching=True,
            max_decode_slowdown=2.5,
            num_states=runners[0].num_states,
        ),
        max_waiting=4,
    )


@pytest.mark.parametrize(
    ("num_ranks", "quantization", "dtype", "backend", "tolerance"),
    [
        (2, "none", "float32", "torch", 1e-4),
        (4, "none", "float32", "torch", 1e-4),  # more ranks than key-value heads
        (2, "int8", "float32", "torch", 1e-4),
        (2, "int4", "float32", "torch", 1e-4),
        pytest.param(2, "none", "float32", "native", 1e-4, marks=needs_kernels),
        pytest.param(2, "none", "bfloat16", "native", 0.2, marks=needs_kernels),
        pytest.param(2, "int8", "bfloat16", "native", 0.2, marks=needs_kernels),
        pytest.param(2, "w8a8", "bfloat16", "native", 0.2, marks=needs_kernels),
    ],
)
def test_ranks_compute_the_same_as_one_rank(
    checkpoint: Path,
    tmp_path: Path,
    num_ranks: int,
    quantization: Quantization,
    dtype: DType,
    backend: Backend,
    tolerance: float,
):
    whole = EngineConfig(
        model_path=str(checkpoint),
        device="cpu",
        dtype=dtype,
        backend=backend,
        quantization=quantization,
        num_threads=1,
        kv_cache_bytes=KV_BYTES,
    )
    # Rounding of bfloat16 sums can change the answer, so only its first token is compared.
    assert_ranks_answer_as_one(
        whole, num_ranks, PROMPT, tmp_path, max_tokens=6 if dtype == "float32" else 1, tolerance=tolerance
    )


def test_ranks_encode_audio_like_one_rank(tmp_path: Path):
    whole = EngineConfig(
        model_path=str(make_audio_checkpoint(tmp_path / "audio")), device="cpu", dtype="float32", num_threads=1
    )
    assert_ranks_answer_as_one(whole, 2, audio_prompt(3, 4_001, 2, 9_000, 6), tmp_path, max_tokens=6, tolerance=1e-4)


def test_ranks_encode_images_of_llava_like_one_rank(tmp_path: Path):
    path = make_llava_checkpoint(tmp_path / "llava", decoder="mistral")
    whole = EngineConfig(model_path=str(path), device="cpu", dtype="float32", num_threads=1)
    assert_ranks_answer_as_one(whole, 2, prompt_of(3, 4, IMAGE, 2, IMAGE, 6), tmp_path, max_tokens=6, tolerance=1e-4)


def test_ranks_encode_tiles_like_one_rank(tmp_path: Path):
    path = make_idefics3_checkpoint(tmp_path / "smolvlm")
    whole = EngineConfig(model_path=str(path), device="cpu", dtype="float32", backend="torch", num_threads=1)
    prompt = tiled_prompt(3, "smolvlm", 5, (3,), 2, (1,), 4)
    assert_ranks_answer_as_one(whole, 2, prompt, tmp_path, max_tokens=6, tolerance=1e-4)


def test_ranks_encode_tiles_with_an_overview_like_one_rank(tmp_path: Path):
    path = make_phi3v_checkpoint(tmp_path / "phi3v")
    whole = EngineConfig(model_path=str(path), device="cpu", dtype="float32", backend="torch", num_threads=1)
    prompt = hd_prompt(path, 3, 5, (200, 61), 2, (37, 301), 4)
    assert_ranks_answer_as_one(whole, 2, prompt, tmp_path, max_tokens=6, tolerance=1e-4)


@pytest.mark.parametrize("family", ["qwen3", "phi3", "phi4 mini", "gemma3"])
def test_ranks_share_norms_of_heads_and_stacked_weights(tmp_path: Path, family: str):
    path = make_text_checkpoint(tmp_path / "text", family)
    whole = EngineConfig(model_path=str(path), device="cpu", dtype="float32", backend="torch", num_threads=1)
    assert_ranks_answer_as_one(whole, 2, make_prompt(3, 30), tmp_path, max_tokens=6, tolerance=1e-4)


@pytest.mark.parametrize("family", ["phi4 mini", "qwen3_5"])
def test_ranks_divide_the_matrices_of_adapters(tmp_path: Path, family: str):
    path = make_text_checkpoint(tmp_path / "text", family)
    modules = {"a": str(make_adapter(tmp_path / "adapter", path))}
    whole = EngineConfig(model_path=str(path), device="cpu", dtype="float32", num_threads=1, lora_modules=modules)
    assert_ranks_answer_as_one(whole, 2, make_prompt(3, 30), tmp_path, max_tokens=6, tolerance=1e-4, adapter="a")


def audio_prompt(*numbers: int) -> Prompt:
    """Returns a prompt of alternating text and audio inputs with these numbers of tokens and samples."""
    token_ids: list[int] = []
    spans: list[MediaSpan] = []
    features: list[np.ndarray] = []
    for index, number in enumerate(numbers):
        if index % 2 == 0:
            token_ids += range(40, 40 + number)
            continue
        audio = audio_from_samples(noise(index, number), PROCESSING)
        span = MediaSpan(
            kind=MediaKind.AUDIO,
            start=len(token_ids),
            num_tokens=audio.grid[2] // 4,
            key=audio.key,
            grid=(1, *audio.features.shape),
        )
        spans.append(span)
        features.append(audio.features)
        token_ids += [TOKEN_IDS["<|AUDIO|>"]] * span.num_tokens
    return Prompt(token_ids=tuple(token_ids), spans=tuple(spans), images=tuple(features))


def assert_ranks_answer_as_one(
    whole: EngineConfig,
    num_ranks: int,
    prompt: Prompt,
    folder: Path,
    *,
    max_tokens: int,
    tolerance: float,
    adapter: str = "",
) -> None:
    alone = load_core(whole, on_progress=lambda _stage, _fraction: None)
    expected = logprobs(answer(alone.core, prompt, max_tokens, adapter))
    with ThreadPoolExecutor(num_ranks) as pool:
        core = core_of_threads(replace(whole, tensor_parallel_size=num_ranks), folder / "rendezvous", pool)
        found = logprobs(answer(core, prompt, max_tokens, adapter))
    assert len(found) == len(expected) == max_tokens
    for ours, theirs in zip(found, expected, strict=True):
        common = ours.keys() & theirs.keys()
        assert len(common) >= 4
        assert {token: ours[token] for token in common} == pytest.approx(
            {token: theirs[token] for token in common}, abs=tolerance
        )
