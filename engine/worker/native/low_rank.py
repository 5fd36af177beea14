"""What adapters add to linears, in the layout that the native kernels read."""

from ctypes import POINTER, cast

from torch import Tensor, nn
from torch.nn import functional

from glimpse.engine.worker.layers.low_rank import LowRankUpdate, LowRankUpdates
from glimpse.engine.worker.native.library import DType, LowRankPart
from glimpse.engine.worker.native.library import LowRank as PackedLowRank
from glimpse.engine.worker.native.library import LowRanks as Packed
from glimpse.engine.worker.native.linear import PackedLinear

_TILE_INPUTS, _PANEL_WIDTH = 32, 32
"""Sizes in types.h."""


class PackedUpdates(LowRankUpdates):
    """What all adapters add to a `PackedLinear`. Only the packed copies of their matrices are kept."""

    def __init__(self, linear: nn.Module, num_slots: int) -> None:
        super().__init__(linear, num_slots)
        assert isinstance(linear, PackedLinear)
        self._slots = (PackedLowRank * num_slots)()
        self._memory: dict[int, object] = {}  # slot → what it points to
        self.packed = Packed(
            adapters=cast(self._slots, POINTER(PackedLowRank)),
            in_features=linear.packed.in_features,
            out_features=linear.packed.out_features,
            dtype=linear.packed.dtype,
        )

    def put(self, slot: int, added: LowRankUpdate | None) -> None:
        if added is None:
            self._slots[slot] = PackedLowRank()
            self._memory.pop(slot, None)
            return
        assert self.packed.dtype == DType.of(added.down.dtype)
        down, ups = _pack_down(added.down), [_pack_up(part.up) for part in added.parts]
        parts = (LowRankPart * len(ups))(
            *(
                LowRankPart(
                    up.data_ptr(),
                    part.ranks.start,
                    part.ranks.stop - part.ranks.start,
                    part.outputs.start,
                    part.outputs.stop - part.outputs.start,
                )
                for up, part in zip(ups, added.parts, strict=True)
            )
        )
        self._slots[slot] = PackedLowRank(down.data_ptr(), len(down), cast(parts, POINTER(LowRankPart)), len(parts))
        self._memory[slot] = (down, ups, parts)
        self.packed.most_ranks = max(each.num_ranks for each in self._slots)


def _pack_down(down: Tensor) -> Tensor:
    return functional.pad(down, (0, -down.shape[1] % _TILE_INPUTS)).contiguous()


def _pack_up(up: Tensor) -> Tensor:
    """[outputs, ranks] → [outputs / 32, ranks, 32]"""
    padded = functional.pad(up, (0, 0, 0, -len(up) % _PANEL_WIDTH))
    return padded.unflatten(0, (-1, _PANEL_WIDTH)).transpose(1, 2).contiguous()
