"""Steps in which all only decode, recorded once for each size of batch and replayed: one launch instead of hundreds.

A recording reads its inputs from tensors that stay where they are. A step is copied there and filled up to the next
size with rows of no sequence: they write to a block of the cache that nobody owns and read one key.

Sizes are recorded the largest first, so that smaller ones find their memory in what it left, and one at a time: while
there is nothing to do, or when a step would use one that is not there yet. So the engine is ready before any of them.

Recording itself is `CudaGraphCapturer`, which only a GPU can run: **unmeasured**. All around it runs on any device.
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
"""Computes once more what was recorded, from what its inputs hold now."""


class GraphCapturer(Protocol):
    """What records."""

    def record(self, compute: Callable[[], None]) -> Replay:
        """Records a computation that takes no tensors and returns none: it reads and writes those that it holds."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeInputs:
    """A step of sequences that have one new token each."""

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
        """Views of the inputs of the first sequences."""
        return DecodeInputs(
            token_ids=self.token_ids[:num_sequences],
            positions=self.positions[:, :num_sequences],
            slots=self.slots[:num_sequences],
            block_tables=self.block_tables[:num_sequences],
            query_starts=self.query_starts[: num_sequences + 1],
            key_lengths=self.key_lengths[:num_sequences],
        )


Compute = Callable[[DecodeInputs], Tensor]
"""From the inputs of a step to float32 [sequences, vocab_size]. What it launches depends on their shapes alone."""


class DecodeGraphs:
    """The recordings of one model on one cache."""

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
            compute: what is recorded.
            recorder: of the device.
            max_sequences: of a step.
            max_blocks: of a sequence.
            scratch_slot: of the cache, in a block that nobody owns.
            vocab_size: of the model.
            device: of all tensors.
        """
        self._compute = compute
        self._recorder = capturer
        self._scratch_slot = scratch_slot
        self._sizes = capture_sizes(max_sequences)
        self._replays: dict[int, Replay] = {}
        self._works = True
        largest = self._sizes[-1]

        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        # All sizes share them, as they share their memory: one step is computed after the other.
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
        """Records the largest size that is not recorded yet; False if there is none."""
        missing = [size for size in self._sizes if size not in self._replays]
        if not self._works or not missing:
            return False
        self._record(missing[-1])
        return self._works

    def compute(self, batch: Batch) -> Tensor | None:
        """The logits of a step, which hold until the next one; None if it is not one of these steps.

        float32 [sequences, vocab_size]
        """
        if not self._works or not is_decode(batch) or len(batch.query_lengths) > self._sizes[-1]:
            return None
        size = self._sizes[bisect_left(self._sizes, len(batch.query_lengths))]
        if size not in self._replays:
            self._record(size)
        if not self._works:
            return None
        self._fill(batch, size)
        self._replays[size]()
        return self._logits[: len(batch.query_lengths)]

    def _record(self, size: int) -> None:
        inputs, logits = self._inputs.first(size), self._logits[:size]
        # Nothing of a sequence may be written: what the rows still say of an earlier step is theirs no more.
        inputs.slots.fill_(self._scratch_slot)
        inputs.key_lengths.fill_(1)

        def compute() -> None:
            logits.copy_(self._compute(inputs))

        try:
            self._replays[size] = self._recorder.record(compute)
        except Exception:
            _log.exception("decode steps are launched one operation at a time: CUDA graphs do not work here")
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
        # The rest of each row of the tables is beyond the keys, and the tables of further rows name valid blocks.
        inputs.slots[num_sequences:size].fill_(self._scratch_slot)
        inputs.key_lengths[num_sequences:size].fill_(1)


def capture_sizes(max_sequences: int) -> list[int]:
    """For which numbers of sequences steps are recorded: others are filled up to the next."""
    sizes = [size for size in (1, 2, 4, 8) if size < max_sequences]
    sizes += range(16, max_sequences, 8)
    return [*sizes, max_sequences]


def is_decode(batch: Batch) -> bool:
    """Each sequence has one new token, which is sampled and no part of a medium."""
    num_sequences = len(batch.query_lengths)
    return len(batch.token_ids) == len(batch.sampled_rows) == num_sequences and not batch.media


class CudaGraphCapturer:
    """Records CUDA graphs, all in one pool of memory."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    def record(self, compute: Callable[[], None]) -> Replay:
        """Computes once, which compiles kernels and makes libraries take what they need, and once more to record it.

        Not by `torch.cuda.graph`, which collects garbage and empties the allocator's cache first, each time.
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
