"""What adapters add to linears, in the layout that the native kernels read."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import POINTER, Array, cast
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from glimpse.engine.worker.layers.lora import Adapters
from glimpse.engine.worker.layers.low_rank import AdaptedRows, LowRankUpdate, LowRankUpdates
from glimpse.engine.worker.native.library import DType, LowRank, LowRankPart, LowRanks, RowAdapters
from glimpse.engine.worker.native.linear import PackedLinear, WeightMemory

_TILE_INPUTS, _TILE_OUTPUTS, _BLOCK_RANKS = 32, 16, 4
"""Sizes in types.h and kernels.h."""


class PackedUpdates(LowRankUpdates):
    """What all adapters add to a `PackedLinear`. Only the packed copies of their matrices are kept."""

    def __init__(self, linear: nn.Module, num_slots: int) -> None:
        super().__init__(linear, num_slots)
        assert isinstance(linear, PackedLinear)
        self.linear = linear
        self._slots = (LowRank * num_slots)()
        self._memory: dict[int, object] = {}  # slot → what it points to
        self.packed = LowRanks(cast(self._slots, POINTER(LowRank)))

    @property
    def most_ranks(self) -> int:
        """The most ranks that an adapter has here."""
        return max(each.num_ranks for each in self._slots)

    def put(self, slot: int, added: LowRankUpdate | None, memory: WeightMemory | None = None) -> None:
        """See `LowRankUpdates.put`. `memory`: for the matrices of the adapter; None: it is made."""
        if added is None:
            self._slots[slot] = LowRank()
            self._memory.pop(slot, None)
            return
        memory = memory or WeightMemory(self.linear.library)
        assert self.linear.packed.dtype == DType.of(added.down.dtype)
        down = _copy(_pack_down(added.down), memory)
        ups = [(fields, _copy(up, memory)) for fields, up in self._pack_ups(added)]
        parts = (LowRankPart * len(ups))(*(LowRankPart(up.data_ptr(), *fields) for fields, up in ups))
        self._slots[slot] = LowRank(
            down.data_ptr(), _BLOCK_RANKS * len(down), cast(parts, POINTER(LowRankPart)), len(parts)
        )
        self._memory[slot] = (down, ups, parts)

    def _pack_ups(self, added: LowRankUpdate) -> Iterator[tuple[Sequence[int], Tensor]]:
        """Yields the fields of each `LowRankPart` and its numbers.

        A tile where two of the matrices meet that the linear stacks reads the ranks of both.
        """
        matrices = [*self._matrices(added)]
        edges = {
            edge
            for start, up, _ in matrices
            for edge in (start // 16, -(-start // 16), (start + len(up)) // 16, -(-(start + len(up)) // 16))
        }
        for first, end in pairwise(sorted(edges)):
            start, stop = first * _TILE_OUTPUTS, end * _TILE_OUTPUTS
            own = [each for each in matrices if each[0] < stop and each[0] + len(each[1]) > start]
            if own:
                first_rank, end_rank = min(ranks.start for *_, ranks in own), max(ranks.stop for *_, ranks in own)
                if (end_rank - first_rank) % 2:  # the one before or after has zeros here
                    first_rank, end_rank = max(first_rank - 1, 0), end_rank + (first_rank == 0)
                tiles = added.down.new_zeros(stop - start, end_rank - first_rank)
                for output, up, ranks in own:
                    begin, finish = max(output, start), min(output + len(up), stop)
                    columns = slice(ranks.start - first_rank, ranks.stop - first_rank)
                    tiles[begin - start : finish - start, columns] = up[begin - output : finish - output]
                fields = first_rank, end_rank - first_rank, first, end - first
                by_rank = tiles.unflatten(0, (-1, _TILE_OUTPUTS)).mT
                yield fields, by_rank if tiles.itemsize == 4 else by_rank.unflatten(1, (-1, 2)).mT

    def _matrices(self, added: LowRankUpdate) -> Iterator[tuple[int, Tensor, slice]]:
        """Yields the first output, [outputs, ranks], and the ranks of each part. Gates are padded to whole tiles."""
        packed = self.linear.packed
        width = packed.out_features // 2 if packed.gated else packed.out_features
        for part in added.parts:
            start, stop = part.outputs.start, part.outputs.stop
            for end, padding in ((width, 0), (2 * width, -width % _TILE_OUTPUTS)):
                first, last = max(start, end - width), min(stop, end)
                if first < last:
                    yield first + padding, part.up[first - start : last - start], part.ranks


class PackedAdapters(Adapters):
    """The adapters of a model on the native backend, whose products add what adapters do."""

    most_ranks = 0
    """The most ranks that an adapter has in any linear."""

    def pack(self, rows: AdaptedRows) -> RowAdapters:
        """Returns rows for the kernels. It points to their arrays."""
        return _pack_rows(rows, self.most_ranks)

    def added_to(self, linears: Sequence[nn.Module]) -> "Array[LowRanks] | None":
        """Returns what is added to each of some linears; None: nothing."""
        if self.added.keys().isdisjoint(linears):
            return None
        updates = (self.added.get(linear) for linear in linears)
        return (LowRanks * len(linears))(
            *(each.packed if isinstance(each, PackedUpdates) else LowRanks() for each in updates)
        )

    def ops(self, local: Any, rows: AdaptedRows) -> Any:
        """See `Adapters.ops`. `local`: `NativeOps`."""
        return local.adapted(self, rows)

    def _make(self, linear: nn.Module) -> PackedUpdates:
        return PackedUpdates(linear, self._num_slots)

    def _fill(self, slot: int, added: Mapping[nn.Module, LowRankUpdate]) -> None:
        memory: WeightMemory | None = None  # of the whole adapter, because few of its matrices fill a huge page
        for linear, matrices in added.items():
            updates = self.added[linear]
            assert isinstance(updates, PackedUpdates)
            memory = memory or WeightMemory(updates.linear.library)
            updates.put(slot, matrices, memory)
            self.most_ranks = max(self.most_ranks, updates.most_ranks)

    def _adapt_calls(self, linear: nn.Module, ops: Any) -> Callable[[], None]:
        linear.forward = partial(ops.linear_add, linear=linear, residual=None)
        return partial(delattr, linear, "forward")


@lru_cache(maxsize=1)  # for all linears, and for consecutive steps
def _pack_rows(rows: AdaptedRows, most_ranks: int) -> RowAdapters:
    return RowAdapters(rows.rows.ctypes.data, rows.slots.ctypes.data, len(rows.rows), most_ranks)


def _pack_down(down: Tensor) -> Tensor:
    """[ranks, inputs] → [ranks / 4, inputs / 32, 4, 32]"""
    padded = functional.pad(down, (0, -down.shape[1] % _TILE_INPUTS, 0, -len(down) % _BLOCK_RANKS))
    return padded.unflatten(0, (-1, _BLOCK_RANKS)).unflatten(-1, (-1, _TILE_INPUTS)).transpose(1, 2)


def _copy(matrix: Tensor, memory: WeightMemory) -> Tensor:
    copy = memory.allocate(matrix.nbytes).view(matrix.dtype).view(matrix.shape)
    return copy.copy_(matrix)
