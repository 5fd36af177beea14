"""CUDA graphs of decode steps, captured once per batch size and replayed: one launch instead of hundreds.

A graph reads its inputs from static tensors. A step is copied into them and padded to the next captured size; padding
rows write to a scratch block of the KV cache and read one key.

Graphs are captured one at a time, when the engine is idle or when a step first needs one, so the engine is ready before
any is captured. Larger sizes come first, so that smaller ones reuse their memory.

Only `CudaGraphCapturer` requires a GPU; it is **unmeasured**.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from glimpse.engine.tensors.batch import Batch

_log = logging.getLogger(__name__)

Replay = Callable[[], None]
"""Runs a captured computation on the current contents of its inputs."""


class GraphCapturer(Protocol):
    """Captures computations as graphs."""

    def capture(self, compute: Callable[[], None]) -> Replay:
        """Captures a computation without parameters and results: it reads and writes tensors that it references."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeInputs:
    """The inputs of a decode step, with one new token per sequence."""

    token_ids: Tensor
    """int64 [sequences]"""
    positions: Tensor
    """int64 [3, sequences]"""
    slots: Tensor
    """int64 [sequences]"""
    block_tables: Tensor
    """int32 [sequences, blocks]"""
    query_starts: Tensor
    """int32 [sequences + 1]: 0, 1, 2 …"""
    key_lengths: Tensor
    """int32 [sequences]"""

    def first(self, num_sequences: int) -> "DecodeInputs":
        """Returns views of the inputs of the first sequences."""
        return DecodeInputs(
            token_ids=self.token_ids[:num_sequences],
            positions=self.positions[:, :num_sequences],
            slots=self.slots[:num_sequences],
            block_tables=self.block_tables[:num_sequences],
            query_starts=self.query_starts[: num_sequences + 1],
            key_lengths=self.key_lengths[:num_sequences],
        )


Compute = Callable[[DecodeInputs], Tensor]
"""From the inputs of a step to logits, float32 [sequences, vocab_size]. Launches must depend on shapes only."""


class DecodeGraphs:
    """The CUDA graphs of one model and one KV cache: a `RecordedDecode`."""

    num_scratch_blocks = 1

    def __init__(
        self,
        compute: Compute,
        capturer: GraphCapturer,
        *,
        max_sequences: int,
        max_blocks: int,
        scratch_slot: int,
        vocab_size: int,
        device: torch.device,
    ) -> None:
        """
        Args:
            compute: computation to capture.
            capturer: captures graphs on `device`.
            max_sequences: maximum number of sequences in a step.
            max_blocks: maximum number of blocks of a sequence.
            scratch_slot: slot of the KV cache in a block that no sequence uses.
            vocab_size: vocabulary size of the model.
            device: device of all tensors.
        """
        self._compute = compute
        self._capturer = capturer
        self._scratch_slot = scratch_slot
        self._sizes = capture_sizes(max_sequences)
        self._replays: dict[int, Replay] = {}
        self._works = True
        largest = self._sizes[-1]

        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        # Shared by all sizes, because only one step is computed at a time.
        self._inputs = DecodeInputs(
            token_ids=zeros(largest, dtype=torch.int64),
            positions=zeros(3, largest, dtype=torch.int64),
            slots=zeros(largest, dtype=torch.int64).fill_(scratch_slot),
            block_tables=zeros(largest, max_blocks, dtype=torch.int32),
            query_starts=torch.arange(largest + 1, dtype=torch.int32, device=device),
            key_lengths=zeros(largest, dtype=torch.int32).fill_(1),
        )
        self._logits = zeros(largest, vocab_size, dtype=torch.float32)

    def prepare(self) -> bool:
        """Captures the largest size that is not captured yet. Returns False if there is none."""
        missing = [size for size in self._sizes if size not in self._replays]
        if not self._works or not missing:
            return False
        self._capture(missing[-1])
        return self._works

    def compute(self, batch: Batch) -> Tensor | None:
        """Returns the logits of a decode step, float32 [sequences, vocab_size], which are valid until the next step.

        Returns None if the step is not a decode step or has no graph.
        """
        if not self._works or not batch.is_decode or len(batch.query_lengths) > self._sizes[-1]:
            return None
        size = self._sizes[bisect_left(self._sizes, len(batch.query_lengths))]
        if size not in self._replays:
            self._capture(size)
        if not self._works:
            return None
        self._fill(batch, size)
        self._replays[size]()
        return self._logits[: len(batch.query_lengths)]

    def _capture(self, size: int) -> None:
        inputs, logits = self._inputs.first(size), self._logits[:size]
        # Rows still contain an earlier step, whose slots must not be overwritten.
        inputs.slots.fill_(self._scratch_slot)
        inputs.key_lengths.fill_(1)

        def compute() -> None:
            logits.copy_(self._compute(inputs))

        try:
            self._replays[size] = self._capturer.capture(compute)
        except Exception:
            _log.exception("CUDA graphs are disabled: capturing a decode step failed")
            self._works = False
            self._replays.clear()

    def _fill(self, batch: Batch, size: int) -> None:
        num_sequences, num_blocks = batch.block_tables.shape
        inputs = self._inputs
        inputs.token_ids[:num_sequences].copy_(batch.token_ids)
        inputs.positions[:, :num_sequences].copy_(batch.positions)
        inputs.slots[:num_sequences].copy_(batch.slots)
        inputs.block_tables[:num_sequences, :num_blocks].copy_(batch.block_tables)
        inputs.key_lengths[:num_sequences].copy_(batch.key_lengths_on_device)
        # Table entries past a row's keys are not read, and the tables of padding rows contain valid blocks.
        inputs.slots[num_sequences:size].fill_(self._scratch_slot)
        inputs.key_lengths[num_sequences:size].fill_(1)


def capture_sizes(max_sequences: int) -> list[int]:
    """Returns the numbers of sequences for which graphs are captured; other steps are padded to the next size."""
    sizes = [size for size in (1, 2, 4, 8) if size < max_sequences]
    sizes += range(16, max_sequences, 8)
    return [*sizes, max_sequences]


class CudaGraphCapturer:
    """Captures CUDA graphs that share one memory pool."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    def capture(self, compute: Callable[[], None]) -> Replay:
        """Runs once to compile kernels and initialize libraries, and once more to capture.

        `torch.cuda.graph` is not used because it collects garbage and empties the allocator's cache each time.
        """
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            compute()
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                compute()
            finally:
                graph.capture_end()
        current.wait_stream(self._stream)
        return graph.replay
