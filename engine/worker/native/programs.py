"""Decode steps of small batches as programs: the operations of all layers in one call and one parallel region.

A step of 24 layers is some 120 calls from Python otherwise, each with a parallel region of its own. A program is
recorded once for each number of tokens, when a step first needs it. Its results are bit-identical to those of
`NativeOps`.
"""

from collections.abc import Callable, Sequence
from ctypes import CDLL, addressof, byref, c_int64, pointer
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from glimpse.engine.worker.layers.low_rank import AdaptedRows
from glimpse.engine.worker.layers.ops import Ops
from glimpse.engine.worker.layers.rotary import Rotation
from glimpse.engine.worker.native.attention import supports
from glimpse.engine.worker.native.library import DecodeInputs, DType, Level, Program
from glimpse.engine.worker.native.linear import PackedLinear
from glimpse.engine.worker.native.low_rank import PackedAdapters
from glimpse.engine.worker.native.native_ops import NO_ADAPTERS, supports_states
from glimpse.engine.worker.native.recorder import Recorder
from glimpse.engine.worker.tensors.batch import Batch
from glimpse.engine.worker.tensors.kv_cache import KVCache, LayerCache

MAX_ROWS = 16
"""Most tokens in a recorded step: those of one tile. The more there are, the less the calls matter."""
_adapted_rows = lru_cache(maxsize=1)(AdaptedRows)
"""Steps mostly have the sequences of the step before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordableDecoder:
    """A decoder on the native backend, as far as it is recorded."""

    compute: Callable[[Tensor, Rotation, Ops], Tensor]
    """From embeddings, [tokens, hidden_size], to logits or hidden states; calls the operations and nothing else."""
    rotation: Callable[[Tensor], Rotation]
    """Rotation of tokens at positions, int64 [3, tokens]. Each number depends on one position alone."""
    embeddings: nn.Module | Tensor | None
    """A `PackedLinear`, or [vocab_size, hidden_size]. None: each step brings what stands in their place."""
    hidden_size: int
    num_heads: int
    rotary_axes: Sequence[int]
    """The axis of the positions that each frequency uses, of those that rotate."""


def can_record(cache: KVCache) -> bool:
    """Whether the kernels attend over this cache and update its states; otherwise torch does."""
    updates = cache.states is None or supports_states(cache.states.recurrent)
    return updates and all(supports(head_dim=dim, block_size=cache.block_size) for dim in cache.head_dims)


class DecodePrograms:
    """The programs of one model and one KV cache: a `RecordedDecode`."""

    num_scratch_blocks = 0

    def __init__(
        self, decoder: RecordableDecoder, cache: KVCache, adapters: PackedAdapters, *, library: CDLL, level: Level
    ) -> None:
        """
        Args:
            cache: cache for which `can_record` is True.
            adapters: those of the model.
            level: instruction set level of the packed weights.
        """
        self._decoder = decoder
        self._cache = cache
        self._library = library
        self._level = level
        self._rotations = RotationTable(decoder.rotation)
        self._adapters = adapters
        self._programs: dict[tuple[int, int], DecodeProgram] = {}  # by tokens, and linears that adapters change

    def prepare(self) -> bool:
        """Returns False: programs are recorded when a step first needs them, which computes nothing."""
        return False

    def compute(self, batch: Batch, embedded: Tensor | None = None) -> Tensor | None:
        """Returns the logits of a decode step, float32 [tokens, vocab_size], or hidden states, [tokens, hidden_size],
        which are valid until the next step.

        A sequence may have draft tokens. Returns None if the step computes a token without sampling after it, or media,
        or has more than `MAX_ROWS` tokens.

        Args:
            embedded: [tokens, hidden_size], where the decoder has no embeddings.
        """
        rows = batch.token_ids.shape[0]
        if rows > MAX_ROWS or rows != batch.sampled_rows.shape[0] or batch.media:
            return None
        adapters = self._adapters if batch.adapters else NO_ADAPTERS
        kind = rows, len(adapters.added)
        if kind not in self._programs:
            if adapters.added:  # those of fewer linears are not needed any more
                self._programs = {each: self._programs[each] for each in self._programs if each[1] in (0, kind[1])}
            self._programs[kind] = DecodeProgram(self._decoder, self._cache, rows, adapters, level=self._level)
        return self._programs[kind].run(self._library, batch, self._rotations, embedded)


class RotationTable:
    """The rotations of positions, computed once. Every axis of the positions uses the same rows."""

    def __init__(self, rotation: Callable[[Tensor], Rotation]) -> None:
        """`rotation`: as in `RecordableDecoder`."""
        self._rotation = rotation
        self._table = rotation(torch.zeros(3, 0, dtype=torch.int64))

    def up_to(self, position: int) -> Rotation:
        """Returns the rotations of the positions from 0 to at least this one."""
        if position >= len(self._table.cos):
            count = 1 << max(position.bit_length(), 10)
            self._table = self._rotation(torch.arange(count).expand(3, -1))
        return self._table


class DecodeProgram:
    """The recorded step of a number of tokens."""

    def __init__(
        self, decoder: RecordableDecoder, cache: KVCache, rows: int, adapters: PackedAdapters, *, level: Level
    ) -> None:
        """Records the step; arguments are those of `DecodePrograms`."""
        block_size, num_kv_heads = cache.keys.shape[2:4]
        head_dim, layer = cache.head_dims[0], LayerCache(cache.keys, cache.values)
        hidden = torch.empty(rows, decoder.hidden_size, dtype=cache.dtype)
        rotation = Rotation(torch.empty(rows, 1, head_dim // 2), torch.empty(rows, 1, head_dim // 2))
        axes = torch.zeros(head_dim // 2, dtype=torch.int64)
        axes[: len(decoder.rotary_axes)] = torch.tensor(decoder.rotary_axes)
        recorder = Recorder(rows, cache.dtype, adapters)
        self._result = decoder.compute(hidden, rotation, recorder)
        self._adapters, self._hidden = adapters, hidden
        operations = recorder.operations()
        self._program = Program(
            operations=operations,
            num_operations=len(operations),
            level=level,
            dtype=DType.of(cache.dtype),
            rows=rows,
            hidden_size=decoder.hidden_size,
            axes=axes.data_ptr(),
            num_heads=decoder.num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            block_size=block_size,
            is_int8=layer.is_int8,
            hidden=hidden.data_ptr(),
            cos=rotation.cos.data_ptr(),
            sin=rotation.sin.data_ptr(),
        )
        match decoder.embeddings:
            case Tensor():
                self._program.embeddings = decoder.embeddings.data_ptr()
            case None:
                pass
            case embeddings:
                assert isinstance(embeddings, PackedLinear)
                self._program.packed_embeddings = pointer(embeddings.packed)
        self._memory = (decoder, cache, rotation, axes, recorder)  # what the program points to

    def run(self, library: CDLL, batch: Batch, rotations: RotationTable, embedded: Tensor | None) -> Tensor:
        """Runs a step of as many tokens as were recorded; see `DecodePrograms.compute`."""
        if embedded is not None:
            self._hidden.copy_(embedded)
        table = rotations.up_to(int(batch.positions.max()))
        block_tables = batch.block_tables.contiguous()
        num_sequences = len(batch.query_lengths)
        query_lengths = (c_int64 * num_sequences)(*batch.query_lengths)
        inputs = DecodeInputs(
            token_ids=batch.token_ids.data_ptr(),
            positions=batch.positions.data_ptr(),
            slots=batch.slots.data_ptr(),
            block_tables=block_tables.data_ptr(),
            query_lengths=addressof(query_lengths),
            key_lengths=batch.key_lengths_on_device.data_ptr(),
            num_sequences=num_sequences,
            table_width=block_tables.shape[1],
            cos=table.cos.data_ptr(),
            sin=table.sin.data_ptr(),
        )
        if batch.states:
            reads = (c_int64 * len(batch.states))(*(rows.reads for rows in batch.states))
            writes = (c_int64 * len(batch.states))(*(rows.writes for rows in batch.states))
            inputs.reads, inputs.writes = addressof(reads), addressof(writes)
        if batch.adapters:
            adapted = _adapted_rows(batch.adapters)
            inputs.adapted = pointer(self._adapters.pack(adapted))
        library.glimpse_run_program(byref(self._program), byref(inputs))
        return self._result
