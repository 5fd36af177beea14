"""Recorded decode steps: every bit is that of the step whose operations are called one by one."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glimpse.engine.core.core import Core
from glimpse.engine.core.plan import NO_STATE, ChunkStates, SequenceChunk
from glimpse.engine.protocol.config import EngineConfig, KvCacheDType, Quantization
from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.engine.worker.loading import build_runner
from glimpse.engine.worker.loading.build_runner import LoadedShard, make_mtp_programs, make_programs
from glimpse.engine.worker.loading.load_engine import load_core, load_shard
from glimpse.engine.worker.native.library import Level
from glimpse.engine.worker.native.programs import MAX_ROWS, DecodePrograms
from glimpse.engine.worker.tensors.batch import AdapterRows, Batch, SequenceLayout
from glimpse.engine.worker.tensors.batch_builder import make_batch
from glimpse.engine.worker.tensors.kv_cache import SCALE_BYTES, CacheShape, KVCache, LayerStates, quantize
from tests.checkpoints.deepseek_ocr2 import make_deepseek_ocr2_checkpoint
from tests.checkpoints.lora import PROJECTIONS, make_adapter
from tests.checkpoints.qwen2_vl import make_checkpoint
from tests.checkpoints.qwen3_5 import make_qwen3_5_checkpoint
from tests.checkpoints.qwen3_vl import make_qwen3_vl_checkpoint
from tests.checkpoints.text import make_text_checkpoint
from tests.engine.checking_runner import answers, run_until_idle
from tests.engine.harness import make_prompt, request_of
from tests.engine.levels import at_each_level, needs_kernels
from tests.paths import ROOT

CPU = torch.device("cpu")
BLOCK_SIZE = 32
NUM_BLOCKS = 80
EMBEDDED = ROOT / "models" / "nano"


def load(path: Path, **options: Any) -> LoadedShard:
    defaults: dict[str, Any] = {"dtype": "bfloat16", "num_threads": 1, "backend": "native"}
    config = EngineConfig(model_path=str(path), device="cpu", **defaults | options)
    return load_shard(config, rank=0, on_progress=lambda stage, fraction: None)


def random_cache(shard: LoadedShard, kv_cache_dtype: KvCacheDType = "auto") -> KVCache:
    shape = CacheShape.of(shard.model.decoder.config, kv_cache_dtype)
    cache = shape.allocate(NUM_BLOCKS, BLOCK_SIZE, shard.dtype, shard.device, num_states=2 * MAX_ROWS)
    for tensor in tensors_of(cache):
        values = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(len(tensor)))
        tensor.copy_(quantize(values[..., :-SCALE_BYTES]) if tensor.dtype is torch.int8 else values)
    return cache


def tensors_of(cache: KVCache) -> list[torch.Tensor]:
    return [cache.keys, cache.values, *(cache.states or ())]


def copy_of(cache: KVCache) -> KVCache:
    states = None if cache.states is None else LayerStates(*(tensor.clone() for tensor in cache.states))
    return replace(cache, keys=cache.keys.clone(), values=cache.values.clone(), states=states)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view({4: torch.int32, 2: torch.int16, 1: torch.int8}[tensor.itemsize])


def decode_step(
    lengths: Sequence[int],
    seed: int,
    *,
    num_draft_tokens: int = 0,
    keeps_states: bool = False,
    device: torch.device = CPU,
) -> Batch:
    """Returns a step of sequences that have these lengths after it. Their blocks are scattered, and their states too:
    some write the one that they read, others another.

    Sequences with an even index compute a token of their prompt, whose position differs in time, height and width.
    """
    random = np.random.default_rng(seed)
    blocks, states = random.permutation(NUM_BLOCKS).tolist(), random.permutation(2 * MAX_ROWS).tolist()
    chunks: list[SequenceChunk] = []
    layouts: dict[int, SequenceLayout] = {}
    for sequence_id, length in enumerate(lengths):
        chunks.append(
            SequenceChunk(
                sequence_id=sequence_id,
                start=length - 1 - num_draft_tokens,
                token_ids=tuple(random.integers(0, 256, 1 + num_draft_tokens).tolist()),
                block_table=tuple(blocks.pop() for _ in range(-(-length // BLOCK_SIZE))),
                samples=True,
                num_draft_tokens=num_draft_tokens,
                states=_states(states, length, num_draft_tokens) if keeps_states else None,
            )
        )
        num_prompt_tokens = length if sequence_id % 2 == 0 else 0
        layouts[sequence_id] = SequenceLayout(
            prompt_positions=random.integers(0, 3000, (3, num_prompt_tokens)), delta=7, spans=()
        )
    return make_batch(chunks, layouts, block_size=BLOCK_SIZE, device=device)


def _states(free: list[int], length: int, num_draft_tokens: int) -> ChunkStates:
    reads, others = free.pop(), [free.pop() for _ in range(1 + num_draft_tokens)]
    writes = [reads if length % 2 else others[0], *others[1:]]
    return ChunkStates(reads=NO_STATE if length == 1 else reads, writes=tuple((1, state) for state in writes))


@torch.inference_mode()
def assert_bits_agree(shard: LoadedShard, steps: Sequence[Batch], kv_cache_dtype: KvCacheDType = "auto") -> None:
    """Computes steps with programs and without, each with its own cache, and compares logits and caches."""
    cache = random_cache(shard, kv_cache_dtype)
    plain_cache = copy_of(cache)
    programs = make_programs(shard, cache)
    assert programs is not None
    for step in steps:
        logits = programs.compute(step)
        assert logits is not None
        expected = shard.model(step, plain_cache, {})
        assert torch.equal(bits(logits), bits(expected))
        for found, plain in zip(tensors_of(cache), tensors_of(plain_cache), strict=True):
            assert torch.equal(bits(found), bits(plain))


STEPS = [
    decode_step([1], 0),
    decode_step([32], 1),
    decode_step([33], 2),
    decode_step([255, 256, 257], 3),
    decode_step([700, 1], 4),
    decode_step([33], 5),
    decode_step([*range(90, 90 + MAX_ROWS)], 6),
    decode_step([1, 64, 65, 300, 2], 7),
    decode_step([270], 8, num_draft_tokens=7),
    decode_step([34, 513], 9, num_draft_tokens=4),
]
"""Several numbers of sequences, block boundaries, more than one range of keys, and draft tokens."""


@needs_kernels
@at_each_level
@pytest.mark.parametrize("quantization", ["none", "int8", "w8a8", "int4"])
def test_bits_agree_at_each_level(tiny_checkpoint: Path, level: Level, quantization: Quantization):
    assert_bits_agree(load(tiny_checkpoint, cpu_level=level.option, quantization=quantization), STEPS)


@needs_kernels
@at_each_level
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_bits_agree_in_float32(tiny_checkpoint: Path, level: Level, kv_cache_dtype: KvCacheDType):
    assert_bits_agree(load(tiny_checkpoint, cpu_level=level.option, dtype="float32"), STEPS, kv_cache_dtype)


@needs_kernels
@pytest.mark.parametrize(
    ("num_threads", "kv_cache_dtype"), [(1, "auto"), (2, "auto"), (3, "auto"), (3, "int8"), (5, "auto")]
)
def test_bits_agree_with_the_embedded_model(num_threads: int, kv_cache_dtype: KvCacheDType):
    assert_bits_agree(load(EMBEDDED, num_threads=num_threads), STEPS, kv_cache_dtype)


@needs_kernels
def test_bits_agree_with_embeddings_of_their_own(tmp_path: Path):
    assert_bits_agree(load(make_checkpoint(tmp_path / "untied", tied=False)), STEPS)


@needs_kernels
@pytest.mark.parametrize("family", ["llama3", "mistral", "phi3", "phi4 mini", "qwen3", "qwen3 moe"])
def test_bits_agree_in_other_families(tmp_path: Path, family: str):
    """Scaled frequencies, norms of heads, heads that rotate in part, heads wider together than the hidden size, and a
    mixture of experts."""
    assert_bits_agree(load(make_text_checkpoint(tmp_path / family, family)), STEPS)


@needs_kernels
def test_bits_agree_with_a_shared_expert_that_has_no_score(tmp_path: Path):
    assert_bits_agree(load(make_deepseek_ocr2_checkpoint(tmp_path / "model")), STEPS)


@needs_kernels
@pytest.mark.parametrize(("num_threads", "has_experts"), [(1, False), (3, False), (3, True)])
def test_bits_agree_with_adapters(tiny_checkpoint: Path, tmp_path: Path, num_threads: int, has_experts: bool):
    """Two adapters change different linears; sequences have one of them in turns, or none."""
    path = make_text_checkpoint(tmp_path / "base", "qwen3 moe") if has_experts else tiny_checkpoint
    targets = {"all": rf"({PROJECTIONS}|.*\.experts\.\d+\.\w+_proj)", "queries": r".*\.(q|down)_proj"}
    modules = {
        name: str(make_adapter(tmp_path / name, path, seed=seed, targets=own, r=9 - seed))
        for seed, (name, own) in enumerate(targets.items())
    }
    shard = load(path, num_threads=num_threads, lora_modules=modules)
    assert_bits_agree(shard, [each for step in STEPS for each in (with_adapters(step), step)])


def with_adapters(step: Batch) -> Batch:
    ends = np.cumsum(step.query_lengths).tolist()
    rows = [
        AdapterRows(end - length, length, index % 3)
        for index, (end, length) in enumerate(zip(ends, step.query_lengths, strict=True))
        if index % 3 < 2
    ]
    return replace(step, adapters=tuple(rows))


@needs_kernels
@at_each_level
def test_bits_agree_with_interleaved_axes_of_positions(tmp_path: Path, level: Level):
    """Qwen3-VL, which also has norms of heads and embeddings of media that decode steps do not see."""
    shard = load(make_qwen3_vl_checkpoint(tmp_path / "qwen3-vl"), cpu_level=level.option)
    assert shard.model.decoder.config.mrope_interleaved
    assert_bits_agree(shard, STEPS)


@needs_kernels
@at_each_level
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("family", ["qwen3_5 moe", "lfm2"])
def test_bits_agree_with_states_gates_and_a_shared_expert(tmp_path: Path, level: Level, dtype: str, family: str):
    shard = load(make_text_checkpoint(tmp_path / "model", family), dtype=dtype, cpu_level=level.option)
    lengths = ([1], [33], [255, 256, 257], [1, 64, 65, 300, 2], [*range(90, 90 + MAX_ROWS)])
    steps = [decode_step(own, seed, keeps_states=True) for seed, own in enumerate(lengths)]
    steps += [decode_step(own, 9, num_draft_tokens=4, keeps_states=True) for own in ([270], [34, 65, 513])]
    assert_bits_agree(shard, steps)


@needs_kernels
@torch.inference_mode()
def test_bits_agree_in_a_layer_of_multi_token_prediction(tmp_path: Path):
    """Steps of the decoder end with hidden states for it."""
    shard = load(make_qwen3_5_checkpoint(tmp_path / "model", dtype="bfloat16"), speculative="mtp")
    model, cache = shard.model, random_cache(shard)
    plain_cache = copy_of(cache)
    decoder, layer = make_programs(shard, cache), make_mtp_programs(shard, cache)
    assert decoder is not None
    assert layer is not None
    for lengths, num_draft_tokens in (([270], 0), ([34, 65, 513], 4)):
        step = decode_step(lengths, 9, num_draft_tokens=num_draft_tokens, keeps_states=True)
        hidden = decoder.compute(step)
        assert hidden is not None
        assert torch.equal(bits(hidden), bits(model.hidden_states(step, plain_cache, {})))
        arguments = step, step.token_ids.flip(0), model.decoder.norm(hidden)
        states = model.draft_states(*arguments, cache, {}, layer.compute)
        assert torch.equal(bits(states), bits(model.draft_states(*arguments, plain_cache, {})))
        for found, plain in zip(tensors_of(cache), tensors_of(plain_cache), strict=True):
            assert torch.equal(bits(found), bits(plain))


@needs_kernels
def test_other_steps_are_not_recorded(tiny_checkpoint: Path):
    shard = load(tiny_checkpoint)
    programs = make_programs(shard, random_cache(shard))
    assert programs is not None
    layout = SequenceLayout(prompt_positions=np.zeros((3, 4), dtype=np.int64), delta=0, spans=())

    defaults: dict[str, Any] = {"sequence_id": 0, "start": 4, "block_table": (0,), "samples": True}

    def computes(**chunk: Any) -> bool:
        step = SequenceChunk(**defaults | chunk)
        return programs.compute(make_batch([step], {0: layout}, block_size=BLOCK_SIZE, device=CPU)) is not None

    assert computes(token_ids=(1,))
    assert not computes(token_ids=(1, 2))
    assert not computes(token_ids=(1,), samples=False)
    assert computes(token_ids=(1, 2), num_draft_tokens=1)
    assert programs.compute(decode_step([5] * MAX_ROWS, 0)) is not None
    assert programs.compute(decode_step([5] * (MAX_ROWS + 1), 0)) is None


@needs_kernels
def test_other_models_and_caches_are_not_recorded(tiny_checkpoint: Path):
    shard = load(tiny_checkpoint)
    cache = random_cache(shard)
    assert make_programs(shard, replace(cache, keys=cache.keys[:, :, :16], values=cache.values[:, :, :16])) is None
    shard.model.parallel = lambda ops: ops  # as with several ranks
    assert make_programs(shard, cache) is None
    assert make_programs(load(tiny_checkpoint, backend="torch"), cache) is None


@needs_kernels
@pytest.mark.parametrize("speculative", ["off", "ngram"])
def test_answers_are_those_of_unrecorded_steps(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, speculative: Any
):
    recorded: list[int] = []
    compute = DecodePrograms.compute

    def count(programs: DecodePrograms, batch: Batch) -> torch.Tensor | None:
        logits = compute(programs, batch)
        recorded.append(len(batch.query_lengths) if logits is not None else 0)
        return logits

    def run(core: Core) -> dict[str, list[int]]:
        for index in range(7):
            sampling = SamplingParams(
                temperature=0.7 * (index % 2), seed=index, max_tokens=20 + index, ignore_eos=True, logprobs=index % 3
            )
            core.submit(request_of(str(index), make_prompt(index, 5 + 9 * index, (56, 56), 3), sampling))
        return answers(run_until_idle(core))

    def make_core() -> Core:
        config = EngineConfig(
            model_path=str(tiny_checkpoint),
            dtype="bfloat16",
            num_threads=1,
            kv_cache_bytes=8 << 20,
            max_sequences=5,
            speculative=speculative,
        )
        return load_core(config, on_progress=lambda stage, fraction: None).core

    monkeypatch.setattr(DecodePrograms, "compute", count)
    found = run(make_core())
    assert {0, 5} <= set(recorded), "prompts are not recorded, decode steps are"
    monkeypatch.setattr(build_runner, "make_programs", lambda _shard, _cache: None)
    assert run(make_core()) == found
