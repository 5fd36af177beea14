"""Sizes the KV cache on a GPU: it gets the memory that is left after the engine's largest steps have been tried.

The arithmetic and the plans of these steps are plain values. Only `measure`, `free_bytes` and `foreign_bytes` use a
device.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from glimpse.engine.checkpoint.families.spec import LargestMedium
from glimpse.engine.core.plan import NO_STATE, ChunkStates, Encode, SequenceChunk, SequenceStart, StepPlan
from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.native.memory import gib

DEFAULT_CPU_BYTES = 1 << 30

_KEY = bytes(32)
_SAMPLING = SamplingParams(top_p=0.9, logprobs=20)
"""Sampling that takes the most memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Memory of a GPU, in bytes."""

    total: int
    foreign: int
    """Used by other programs and by CUDA itself."""
    weights: int
    largest_step: int
    """Peak of the step with the most tokens, in addition to the weights."""
    decode_step: int
    """Peak of the step with the most sequences. Its logits may still be in use while another step runs."""
    graphs: int
    """Inputs, logits and memory pool of the CUDA graphs of decode steps; 0 without them."""
    encoder_cache: int

    @property
    def used(self) -> int:
        steps = self.largest_step + self.decode_step
        return self.foreign + self.weights + steps + self.graphs + self.encoder_cache


def kv_cache_bytes(use: MemoryUse, *, utilization: float) -> int:
    """Returns the memory that is left for keys and values.

    Args:
        utilization: Share of the total that the engine may use.

    Raises:
        CheckpointError: nothing is left.
    """
    left = int(utilization * use.total) - use.used
    if left <= 0:
        parts = ", ".join(
            f"{gib(num_bytes)} {name}"
            for name, num_bytes in (
                ("by other programs and CUDA", use.foreign),
                ("by the weights", use.weights),
                ("by the largest steps", use.largest_step + use.decode_step),
                ("for CUDA graphs", use.graphs),
                ("for encoded media", use.encoder_cache),
            )
        )
        raise CheckpointError(
            f"--gpu-memory-utilization {utilization}: no memory is left for the KV cache. Of {gib(use.total)}, "
            f"{parts} are used. Lower --max-batch-tokens or --max-sequences, or quantize the weights"
        )
    return left


def largest_step(
    medium: LargestMedium | None, *, max_batch_tokens: int, max_sequences: int, block_size: int
) -> StepPlan:
    """Returns a plan with as many tokens as allowed, most of them of one prompt, and a medium to encode, if any."""
    num_sequences = min(max_sequences, max_batch_tokens)
    lengths = [max_batch_tokens - num_sequences + 1, *[1] * (num_sequences - 1)]
    media = () if medium is None else (_encode_of(medium),)
    return _step(lengths, block_size, media)


def decode_step(*, max_batch_tokens: int, max_sequences: int, block_size: int) -> StepPlan:
    """Returns a plan with one token for each of as many sequences as allowed."""
    return _step([1] * min(max_sequences, max_batch_tokens), block_size, ())


def end_of(plan: StepPlan) -> StepPlan:
    """Returns the plan that makes a runner forget such a step."""
    return StepPlan(
        ended=tuple(start.sequence_id for start in plan.started), evicted=tuple(item.key for item in plan.encode)
    )


def num_blocks_of(plan: StepPlan) -> int:
    """Blocks that the plan writes."""
    return sum(len(chunk.block_table) for chunk in plan.chunks)


def measure(run: Callable[[], object], device: torch.device) -> int:
    """Returns the peak of GPU memory, in bytes, that a call allocates in addition to what is allocated before."""
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


class Graphs(Protocol):
    """Recorded steps."""

    def prepare(self) -> bool:
        """Records another one; returns False if there is none, or none can be recorded."""
        ...


def graph_bytes(make: Callable[[], Graphs], num_graphs: int, read_free: Callable[[], int]) -> int:
    """Returns the GPU memory, in bytes, that graphs take when all of them are captured.

    Captures two of them, and takes the second for as large as each of the others, which share the memory of the first.

    Args:
        make: makes the graphs. The first one that they capture is the largest.
        read_free: reads how many bytes of GPU memory are free.
    """
    before = read_free()
    graphs = make()
    readings = [read_free()]
    while len(readings) < min(3, 1 + num_graphs) and graphs.prepare():
        readings.append(read_free())
    others = max(0, readings[1] - readings[2]) if len(readings) == 3 else 0
    return max(0, before - readings[-1]) + max(0, num_graphs - 2) * others


def free_bytes(device: torch.device) -> int:
    """Returns the GPU memory that neither tensors nor CUDA itself hold, in bytes. Waits for the device."""
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]


def foreign_bytes(device: torch.device) -> tuple[int, int]:
    """Returns the GPU memory that is not held by this program's tensors, and the total, in bytes."""
    free, total = torch.cuda.mem_get_info(device)
    return total - free - torch.cuda.memory_reserved(device), total


def _step(lengths: list[int], block_size: int, media: tuple[Encode, ...]) -> StepPlan:
    starts: list[SequenceStart] = []
    chunks: list[SequenceChunk] = []
    first_block = 0
    for index, length in enumerate(lengths):
        sequence_id = -1 - index  # a core's ids are not negative
        num_blocks = -(-length // block_size)
        token_ids = (0,) * length
        starts.append(SequenceStart(sequence_id=sequence_id, prompt_token_ids=token_ids, spans=(), sampling=_SAMPLING))
        chunks.append(
            SequenceChunk(
                sequence_id=sequence_id,
                start=0,
                token_ids=token_ids,
                block_table=tuple(range(first_block, first_block + num_blocks)),
                samples=True,
                states=ChunkStates(reads=NO_STATE, writes=((length, index),)),
            )
        )
        first_block += num_blocks
    return StepPlan(started=tuple(starts), encode=media, chunks=tuple(chunks))


def _encode_of(medium: LargestMedium) -> Encode:
    return Encode(key=_KEY, kind=medium.kind, grid=medium.grid, content=memoryview(bytes(medium.num_bytes)))
