"""CUDA graphs of decode steps, captured for sizes of batches and replayed: one launch instead of hundreds.

A graph reads its inputs from static tensors. A step is copied into them and padded to the next captured size; padding
rows write to a scratch block of the KV cache and read one key.

Each size is captured for a few widths of the block tables, because the grid of the attention kernel depends on the
width: in a graph for the longest context, most of its programs would end at once where contexts are short.

Graphs are captured one at a time, when the engine is idle or when a step first needs one, so the engine is ready before
any is captured. The widest come first, because they serve all steps, and of these the largest, so that others reuse
their memory.

Only `CudaGraphCapturer` requires a GPU; it is **unmeasured**.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Protocol

import torch
from torch import Tensor

from glimpse.engine.worker.tensors.batch import Batch

_log = logging.getLogger(__name__)

CONTEXTS = (512, 2048)
"""Contexts, in tokens, for which graphs are captured besides the longest one: 4 and 16 splits of the keys, of 32.

Estimates: not measured on a GPU yet.
"""

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
        widths: Sequence[int],
        block_size: int,
        scratch_slot: int,
        vocab_size: int,
        device: torch.device,
    ) -> None:
        """
        Args:
            widths: numbers of columns of the block tables, ascending; the last one is the maximum of a sequence.
            scratch_slot: slot of the KV cache in a block that no sequence uses.
        """
        self._compute = compute
        self._capturer = capturer
        self._scratch_slot = scratch_slot
        self._sizes = capture_sizes(max_sequences)
        self._widths = [*widths]
        self._block_size = block_size
        self._replays: dict[tuple[int, int], Replay] = {}  # of each (width, size)
        self._works = True
        largest = self._sizes[-1]

        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        # Shared by all sizes, because only one step is computed at a time, and by all widths, apart from the tables.
        widest = DecodeInputs(
            token_ids=zeros(largest, dtype=torch.int64),
            positions=zeros(3, largest, dtype=torch.int64),
            slots=zeros(largest, dtype=torch.int64).fill_(scratch_slot),
            block_tables=zeros(largest, widths[-1], dtype=torch.int32),
            query_starts=torch.arange(largest + 1, dtype=torch.int32, device=device),
            key_lengths=zeros(largest, dtype=torch.int32).fill_(1),
        )
        self._inputs = {
            width: replace(widest, block_tables=zeros(largest, width, dtype=torch.int32)) for width in widths[:-1]
        } | {widths[-1]: widest}
        self._logits = zeros(largest, vocab_size, dtype=torch.float32)

    def prepare(self) -> bool:
        """Captures the widest graph that is not captured yet, the largest first. Returns False if there is none."""
        wanted = product(reversed(self._widths), reversed(self._sizes))
        missing = next((graph for graph in wanted if graph not in self._replays), None)
        if not self._works or missing is None:
            return False
        self._capture(*missing)
        return self._works

    def compute(self, batch: Batch) -> Tensor | None:
        """Returns the logits of a decode step, float32 [sequences, vocab_size], which are valid until the next step.

        Returns None if the step is not a decode step, has no graph, or has adapters.
        """
        if not self._works or not batch.is_decode or batch.adapters or len(batch.query_lengths) > self._sizes[-1]:
            return None
        size = self._sizes[bisect_left(self._sizes, len(batch.query_lengths))]
        num_blocks = -(-max(batch.key_lengths) // self._block_size)
        width = next((width for width in self._widths if width >= num_blocks and (width, size) in self._replays), None)
        if width is None:
            # The widest also serves the steps to come. Others are captured when the engine is idle.
            width = self._widths[-1]
            self._capture(width, size)
        if not self._works:
            return None
        self._fill(batch, self._inputs[width], size)
        self._replays[width, size]()
        return self._logits[: len(batch.query_lengths)]

    def _capture(self, width: int, size: int) -> None:
        inputs, logits = self._inputs[width].first(size), self._logits[:size]
        # Rows still contain an earlier step, whose slots must not be overwritten.
        inputs.slots.fill_(self._scratch_slot)
        inputs.key_lengths.fill_(1)

        def compute() -> None:
            logits.copy_(self._compute(inputs))

        try:
            self._replays[width, size] = self._capturer.capture(compute)
        except Exception:
            _log.exception("CUDA graphs are disabled: capturing a decode step failed")
            self._works = False
            self._replays.clear()

    def _fill(self, batch: Batch, inputs: DecodeInputs, size: int) -> None:
        num_sequences = len(batch.query_lengths)
        num_blocks = min(batch.block_tables.shape[1], inputs.block_tables.shape[1])
        inputs.token_ids[:num_sequences].copy_(batch.token_ids)
        inputs.positions[:, :num_sequences].copy_(batch.positions)
        inputs.slots[:num_sequences].copy_(batch.slots)
        inputs.block_tables[:num_sequences, :num_blocks].copy_(batch.block_tables[:, :num_blocks])
        inputs.key_lengths[:num_sequences].copy_(batch.key_lengths_on_device)
        # Table entries past a row's keys are not read, and the tables of padding rows contain valid blocks.
        inputs.slots[num_sequences:size].fill_(self._scratch_slot)
        inputs.key_lengths[num_sequences:size].fill_(1)


def capture_sizes(max_sequences: int) -> list[int]:
    """Returns the numbers of sequences for which graphs are captured; other steps are padded to the next size."""
    sizes = [size for size in (1, 2, 4, 8) if size < max_sequences]
    sizes += range(16, max_sequences, 8)
    return [*sizes, max_sequences]


def table_widths(max_blocks: int, block_size: int) -> list[int]:
    """Returns the widths of block tables for which graphs are captured, ascending, up to `max_blocks`."""
    widths = [-(-context // block_size) for context in CONTEXTS]
    return [*(width for width in widths if width < max_blocks), max_blocks]


def max_graphs(max_sequences: int) -> int:
    """Returns how many graphs are captured at most."""
    return len(capture_sizes(max_sequences)) * (len(CONTEXTS) + 1)


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
