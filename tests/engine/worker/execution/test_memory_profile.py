"""The size of the KV cache, and the profiling steps that determine it."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from glimpse.engine.checkpoint.families.registry import family_of
from glimpse.engine.checkpoint.families.spec import LargestMedium
from glimpse.engine.core.plan import StepPlan
from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.config import EngineConfig
from glimpse.engine.worker.execution.memory_profile import (
    MemoryUse,
    decode_step,
    end_of,
    graph_bytes,
    kv_cache_bytes,
    largest_step,
    num_blocks_of,
)
from glimpse.engine.worker.loading.build_runner import make_runner
from glimpse.engine.worker.loading.load_engine import load_shard
from glimpse.media.kind import MediaKind
from tests.checkpoints.qwen2_audio import make_audio_checkpoint

GIB = 1 << 30
MEDIUM = LargestMedium(
    kind=MediaKind.IMAGE, grid=(1, 20, 20), num_bytes=7, num_positions=400, width=32, intermediate_size=128
)


def use(**bytes_taken: int) -> MemoryUse:
    nothing = {"foreign": 0, "weights": 0, "largest_step": 0, "decode_step": 0, "graphs": 0, "encoder_cache": 0}
    return MemoryUse(total=100 * GIB, **(nothing | bytes_taken))


@pytest.mark.parametrize(
    ("taken", "utilization", "left"),
    [
        ({}, 1.0, 100),
        ({}, 0.5, 50),
        ({"weights": 30 * GIB}, 0.9, 60),
        (
            {
                "foreign": GIB,
                "weights": 10 * GIB,
                "largest_step": 2 * GIB,
                "decode_step": GIB,
                "graphs": 3 * GIB,
                "encoder_cache": GIB,
            },
            1,
            82,
        ),
    ],
)
def test_kv_cache_gets_the_remaining_memory(taken: dict[str, int], utilization: float, left: int):
    assert kv_cache_bytes(use(**taken), utilization=utilization) == left * GIB


@pytest.mark.parametrize("weights", [90 * GIB, 95 * GIB])
def test_error_lists_memory_use_if_nothing_is_left(weights: int):
    with pytest.raises(CheckpointError, match="no memory is left for the KV cache") as caught:
        kv_cache_bytes(use(weights=weights, largest_step=GIB, decode_step=GIB, graphs=GIB), utilization=0.9)
    message = str(caught.value)
    assert f"{weights / GIB} GiB by the weights, 2.0 GiB by the largest steps, 1.0 GiB for CUDA graphs" in message


class GraphsThatTake:
    """Graphs on a GPU whose free memory is known: reading it needs a GPU."""

    def __init__(self, static_bytes: int, graph_bytes: Sequence[int]) -> None:
        self.free = 1000 - static_bytes
        self._graph_bytes = [*graph_bytes]

    def prepare(self) -> bool:
        if not self._graph_bytes:
            return False
        self.free -= self._graph_bytes.pop(0)
        return True


@pytest.mark.parametrize(
    ("captured", "num_graphs", "expected"),
    [
        ([50, 7, 7, 7], 4, 100 + 50 + 3 * 7),
        ([50, 0, 0], 3, 100 + 50),
        ([50], 1, 100 + 50),
        ([50, 7], 2, 100 + 50 + 7),
        ([], 9, 100),  # capturing fails
    ],
)
def test_graphs_are_counted_from_two_of_them(captured: list[int], num_graphs: int, expected: int):
    made: list[GraphsThatTake] = []

    def make() -> GraphsThatTake:
        made.append(GraphsThatTake(100, captured))
        return made[0]

    assert graph_bytes(make, num_graphs, lambda: made[0].free if made else 1000) == expected


@pytest.mark.parametrize(("max_batch_tokens", "max_sequences"), [(100, 8), (8, 100), (1, 1), (64, 1)])
def test_largest_step_reaches_the_limits(max_batch_tokens: int, max_sequences: int):
    plan = largest_step(MEDIUM, max_batch_tokens=max_batch_tokens, max_sequences=max_sequences, block_size=4)
    assert plan.num_tokens == max_batch_tokens
    assert len(plan.chunks) == min(max_batch_tokens, max_sequences)
    blocks = [block for chunk in plan.chunks for block in chunk.block_table]
    assert sorted(blocks) == list(range(num_blocks_of(plan)))
    assert all(chunk.samples for chunk in plan.chunks)
    decodes = decode_step(max_batch_tokens=max_batch_tokens, max_sequences=max_sequences, block_size=4)
    assert decodes.num_tokens == len(plan.chunks)


def test_largest_step_encodes_a_medium():
    [image] = largest_step(MEDIUM, max_batch_tokens=100, max_sequences=1, block_size=4).encode
    assert (image.kind, image.grid, image.data.nbytes) == (MediaKind.IMAGE, (1, 20, 20), 7)
    assert largest_step(None, max_batch_tokens=100, max_sequences=1, block_size=4).encode == ()


@pytest.mark.parametrize("with_audio", [False, True])
def test_runner_executes_and_forgets_the_largest_steps(tiny_checkpoint: Path, tmp_path: Path, with_audio: bool):
    path = make_audio_checkpoint(tmp_path) if with_audio else tiny_checkpoint
    config = EngineConfig(model_path=str(path), device="cpu", dtype="float32", num_threads=1, block_size=8)
    part = load_shard(config, rank=0, on_progress=lambda stage, fraction: None)
    runner = make_runner(config, part, None, on_progress=lambda stage, fraction: None)
    plans = (
        largest_step(
            family_of(part.config).largest_medium(part.config, 64), max_batch_tokens=64, max_sequences=4, block_size=8
        ),
        decode_step(max_batch_tokens=64, max_sequences=4, block_size=8),
    )
    for plan in plans:
        assert len(runner.execute(plan).samples) == 4
        assert runner.execute(end_of(plan)).samples == {}
    again = StepPlan(started=plans[0].started, chunks=plans[0].chunks)
    assert len(runner.execute(again).samples) == 4
