"""Decode graphs: padding to captured sizes and replay on static tensors give the same results.

The capturer here runs the function again; everything else is the same as on a GPU.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.core.core import Core
from glimpse.engine.core.plan import SequenceChunk
from glimpse.engine.protocol.config import EngineConfig
from glimpse.engine.protocol.media import MediaSpan
from glimpse.engine.protocol.messages import Generate
from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.engine.worker.cuda.graphs import (
    Compute,
    DecodeGraphs,
    DecodeInputs,
    GraphCapturer,
    Replay,
    capture_sizes,
    max_graphs,
    table_widths,
)
from glimpse.engine.worker.layers.attention import plan_attention
from glimpse.engine.worker.loading import build_runner, load_engine
from glimpse.engine.worker.loading.build_runner import LoadedShard
from glimpse.engine.worker.models.model import Model
from glimpse.engine.worker.tensors.batch import Batch, SequenceLayout
from glimpse.engine.worker.tensors.batch_builder import make_batch
from glimpse.engine.worker.tensors.kv_cache import KVCache
from glimpse.media.kind import MediaKind
from tests.engine.checking_runner import answers, run_until_idle
from tests.engine.harness import make_prompt

CPU = torch.device("cpu")
BLOCK_SIZE = 8
NUM_BLOCKS = 60
MAX_BLOCKS = 5
WIDTHS = (1, 3, MAX_BLOCKS)
MAX_SEQUENCES = 20


class RerunningCapturer:
    """Replays by running the computation again."""

    def __init__(self) -> None:
        self.num_captures = 0

    def capture(self, compute: Callable[[], None]) -> Replay:
        """Runs the computation once, as a capture does."""
        self.num_captures += 1
        compute()
        return compute


class FailingCapturer:
    """Fails to capture."""

    def capture(self, compute: Callable[[], None]) -> Replay:
        raise RuntimeError("operation not permitted when stream is capturing")


def computing(model: Model, cache: KVCache) -> Compute:
    """Returns a decode step. It reads values of its inputs, which is possible because nothing is captured."""

    def compute(inputs: DecodeInputs) -> torch.Tensor:
        lengths = inputs.key_lengths.tolist()
        plan = plan_attention(
            query_lengths=inputs.query_starts.diff().tolist(),
            key_lengths=lengths,
            block_tables=inputs.block_tables[:, : -(-max(lengths) // cache.block_size)].long(),
            block_size=cache.block_size,
            dtype=cache.keys.dtype,
        )
        return model.decoder.decode(inputs.token_ids, inputs.positions, inputs.slots, plan, cache, model.ops)

    return compute


def make_graphs(compute: Compute, capturer: GraphCapturer, vocab_size: int) -> DecodeGraphs:
    return DecodeGraphs(
        compute,
        capturer,
        max_sequences=MAX_SEQUENCES,
        widths=WIDTHS,
        block_size=BLOCK_SIZE,
        scratch_slot=NUM_BLOCKS * BLOCK_SIZE,
        vocab_size=vocab_size,
        device=CPU,
    )


@pytest.fixture(scope="module")
def model(tiny_checkpoint: Path) -> Model:
    return load_engine.load_model(
        tiny_checkpoint, load_model_config(tiny_checkpoint), CPU, torch.float32, lambda stage, fraction: None
    )


def random_cache(model: Model, seed: int) -> KVCache:
    text = model.decoder.config
    shape = (text.num_layers, NUM_BLOCKS + 1, BLOCK_SIZE, text.num_kv_heads, text.head_dim)
    random = torch.Generator().manual_seed(seed)
    keys, values = (torch.randn(shape, generator=random) for _ in range(2))
    return KVCache(keys=keys, values=values, dtype=keys.dtype)


def random_batch(lengths: list[int], seed: int) -> Batch:
    """Returns a decode step of sequences with these lengths, in separate blocks."""
    random = np.random.default_rng(seed)
    blocks = random.permutation(NUM_BLOCKS).tolist()
    chunks: list[SequenceChunk] = []
    for sequence_id, length in enumerate(lengths):
        table = tuple(blocks.pop() for _ in range(-(-length // BLOCK_SIZE)))
        chunks.append(
            SequenceChunk(
                sequence_id=sequence_id,
                start=length - 1,
                token_ids=(int(random.integers(0, 256)),),
                block_table=table,
                samples=True,
            )
        )
    text = SequenceLayout(prompt_positions=np.zeros((3, 0), dtype=np.int64), delta=3, spans=())
    return make_batch(chunks, dict.fromkeys(range(len(lengths)), text), block_size=BLOCK_SIZE, device=CPU)


@settings(max_examples=25)
@given(
    steps=st.lists(st.lists(st.integers(1, BLOCK_SIZE * MAX_BLOCKS), min_size=1, max_size=12), min_size=1, max_size=4),
    num_prepared=st.integers(0, 18),
    seed=st.integers(0, 1000),
)
@torch.inference_mode()
def test_replayed_steps_of_any_size_match_plain_steps(
    model: Model, steps: list[list[int]], num_prepared: int, seed: int
):
    plain, replayed = random_cache(model, seed), random_cache(model, seed)
    graphs = make_graphs(computing(model, replayed), RerunningCapturer(), model.decoder.config.vocab_size)
    for _ in range(num_prepared):
        assert graphs.prepare()
    for index, lengths in enumerate(steps):
        batch = random_batch(lengths, seed + index)
        expected = model(batch, plain, {})
        found = graphs.compute(batch)
        assert found is not None
        assert (found - expected).abs().max() < 1e-4
        assert torch.equal(found.argmax(dim=-1), expected.argmax(dim=-1))
        for one, other in ((plain.keys, replayed.keys), (plain.values, replayed.values)):
            owned = slice(0, NUM_BLOCKS)
            assert (one[:, owned] - other[:, owned]).abs().max() < 1e-4, "only the scratch block may differ"


@pytest.mark.parametrize(
    ("max_sequences", "sizes"),
    [
        (1, [1]),
        (3, [1, 2, 3]),
        (16, [1, 2, 4, 8, 16]),
        (40, [1, 2, 4, 8, 16, 24, 32, 40]),
        (33, [1, 2, 4, 8, 16, 24, 32, 33]),
    ],
)
def test_capture_sizes(max_sequences: int, sizes: list[int]):
    assert capture_sizes(max_sequences) == sizes


@pytest.mark.parametrize(
    ("max_blocks", "block_size", "widths"),
    [(1, 32, [1]), (16, 32, [16]), (17, 32, [16, 17]), (1024, 32, [16, 64, 1024]), (300, 100, [6, 21, 300])],
)
def test_table_widths(max_blocks: int, block_size: int, widths: list[int]):
    assert table_widths(max_blocks, block_size) == widths
    assert len(widths) * len(capture_sizes(40)) <= max_graphs(40)


def test_replays_the_narrowest_graph_that_holds_the_contexts():
    widths: list[int] = []

    def compute(inputs: DecodeInputs) -> torch.Tensor:
        assert inputs.block_tables.is_contiguous()
        widths.append(inputs.block_tables.shape[1])
        return torch.zeros(len(inputs.token_ids), 10)

    graphs = make_graphs(compute, RerunningCapturer(), vocab_size=10)
    assert graphs.compute(random_batch([1], 0)) is not None
    assert widths == [5, 5], "captures only the widest on demand, and replays it"
    while graphs.prepare():
        pass
    widths.clear()
    for lengths in ([1], [8, 8], [9], [3, 24], [25, 1], [40]):
        graphs.compute(random_batch(lengths, 0))
    assert widths == [1, 1, 3, 3, 5, 5]


def test_captures_the_largest_first_when_idle_and_what_a_step_needs():
    sizes: list[int] = []

    def compute(inputs: DecodeInputs) -> torch.Tensor:
        if inputs.block_tables.shape[1] == MAX_BLOCKS:
            sizes.append(len(inputs.token_ids))
        return torch.zeros(len(inputs.token_ids), 10)

    capturer = RerunningCapturer()
    graphs = make_graphs(compute, capturer, vocab_size=10)
    assert graphs.prepare()
    assert graphs.compute(random_batch([4, 9, 1], 0)) is not None
    assert sizes == [20, 4, 4], "captured the largest; captured and replayed the size of the step"
    while graphs.prepare():
        pass
    assert sizes == [20, 4, 4, 16, 8, 2, 1]
    assert capturer.num_captures == 6 * len(WIDTHS)
    assert not graphs.prepare()


def test_runs_without_graphs_if_capturing_fails(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.CRITICAL + 1, logger="glimpse.engine.worker.cuda.graphs"):
        graphs = make_graphs(lambda inputs: inputs.token_ids, FailingCapturer(), vocab_size=10)
        assert graphs.compute(random_batch([4], 0)) is None
        assert not graphs.prepare()
    assert graphs.compute(random_batch([4], 0)) is None


def test_decode_steps_have_one_sampled_token_per_sequence():
    layout = SequenceLayout(
        prompt_positions=np.zeros((3, 6), dtype=np.int64),
        delta=0,
        spans=(MediaSpan(kind=MediaKind.IMAGE, start=4, num_tokens=2, key=b"k", grid=(1, 2, 4)),),
    )

    def batch(start: int, num_tokens: int, *, samples: bool = True, num_draft_tokens: int = 0) -> Batch:
        chunk = SequenceChunk(
            sequence_id=0,
            start=start,
            token_ids=(1,) * num_tokens,
            block_table=(0, 1, 2),
            samples=samples,
            num_draft_tokens=num_draft_tokens,
        )
        return make_batch([chunk], {0: layout}, block_size=BLOCK_SIZE, device=CPU)

    assert batch(6, 1).is_decode
    assert not batch(6, 2).is_decode
    assert not batch(2, 1, samples=False).is_decode
    assert not batch(4, 1).is_decode, "a token of an image"
    assert not batch(6, 2, num_draft_tokens=1).is_decode


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_engine_with_graphs_gives_the_same_answers(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, async_scheduling: bool
):
    capturer = RerunningCapturer()

    def with_graphs(config: EngineConfig, shard: LoadedShard, cache: KVCache) -> DecodeGraphs:
        return DecodeGraphs(
            computing(shard.model, cache),
            capturer,
            max_sequences=config.max_sequences,
            widths=(1, 3, cache.num_blocks),
            block_size=cache.block_size,
            scratch_slot=(cache.num_blocks - 1) * cache.block_size,
            vocab_size=shard.config.text.vocab_size,
            device=shard.device,
        )

    def make_core(**options: Any) -> Core:
        config = EngineConfig(
            model_path=str(tiny_checkpoint),
            device="cpu",
            dtype="float32",
            num_threads=1,
            block_size=BLOCK_SIZE,
            kv_cache_bytes=40 * BLOCK_SIZE * 512,
            max_sequences=6,
            **options,
        )
        return load_engine.load_core(config, on_progress=lambda stage, fraction: None).core

    def run(core: Core) -> dict[str, list[int]]:
        for index in range(8):
            sampling = SamplingParams(
                temperature=0.5 * (index % 2), seed=index, max_tokens=12, logprobs=index % 3 or None
            )
            prompt = make_prompt(index, 5 + 4 * index)
            core.submit(Generate(request_id=str(index), token_ids=list(prompt.token_ids), sampling=sampling))
        return answers(run_until_idle(core))

    plain = make_core()
    expected = run(plain)
    monkeypatch.setattr(build_runner, "uses_cuda_graphs", lambda _config, _shard: True)
    monkeypatch.setattr(build_runner, "make_graphs", with_graphs)
    for module in (build_runner, load_engine):
        monkeypatch.setattr(module, "uses_async_scheduling", lambda _config, _device: async_scheduling)
    core = make_core()
    assert core.scheduler.state.block_pool.num_blocks == plain.scheduler.state.block_pool.num_blocks
    num_captures = capturer.num_captures
    assert core.prepare()
    assert capturer.num_captures == num_captures + 1
    assert run(core) == expected
    assert capturer.num_captures > num_captures + 1
