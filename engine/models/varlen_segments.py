"""Which patches of a vision tower attend to which: runs of them, and the orders in which they stand for that.

Patches stand frame by frame. Where attention ends at windows, they are put in the order of their windows, and for the
few blocks that see whole frames back again. Runs of as many patches each are attended at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from glimpse.engine.layers.ops import Ops
from glimpse.engine.layers.rotary import Rotation


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchOrder:
    """How patches stand that stood frame by frame before."""

    patches: Tensor
    """int64 [patches]: for each place, which patch of that order stands there."""
    inverse: Tensor
    """int64 [patches]: for each patch of that order, at which place it stands."""
    lengths: tuple[int, ...]
    """Patches of each window, one after the other, those of a length together."""

    def to(self, device: torch.device) -> "PatchOrder":
        return replace(self, patches=self.patches.to(device), inverse=self.inverse.to(device))


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentGroup:
    """Runs of as many patches each, which stand together."""

    patches: slice
    num_segments: int
    rotation: Rotation
    """Of these patches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VarlenSegments:
    """What a block needs to know of them."""

    groups: tuple[SegmentGroup, ...]
    order: PatchOrder | None = None
    """How the block's patches stand where that is not the order of the runs."""

    def seen_from(self, order: PatchOrder) -> "VarlenSegments":
        """The same runs where patches stand in another order."""
        return replace(self, order=order)

    def attend(self, qkv: Tensor, ops: Ops) -> Tensor:
        """[patches, 3 (query, key, value), heads, head_dim], which may be overwritten → [patches, heads, head_dim]"""
        if self.order is not None:
            qkv = qkv[self.order.inverse]
        parts = [ops.attend_frames(qkv[group.patches], group.rotation, group.num_segments) for group in self.groups]
        attended = parts[0] if len(parts) == 1 else torch.cat(parts)
        return attended if self.order is None else attended[self.order.patches]


def frame_segments(grids: Sequence[tuple[int, int, int]], rotation: Rotation) -> VarlenSegments:
    """Frames as runs; those of one size stand together, and `rotation` is of the patches as they stand."""
    lengths = [grid_h * grid_w for grid_t, grid_h, grid_w in grids for _ in range(grid_t)]
    return VarlenSegments(groups=_groups(lengths, rotation))


def window_segments(order: PatchOrder, rotation: Rotation) -> VarlenSegments:
    """Windows as runs; `rotation` is of the patches frame by frame."""
    return VarlenSegments(
        groups=_groups(order.lengths, Rotation(rotation.cos[order.patches], rotation.sin[order.patches]))
    )


def window_order(grids: Sequence[tuple[int, int, int]], merge: int, side: int) -> PatchOrder:
    """The order of windows, those with as many patches together.

    Args:
        grids: patches of the media in time, height and width.
        merge: patches of a side that become one token.
        side: tokens of a window's side.
    """
    windows: list[np.ndarray] = []  # of each token, numbered on
    first = 0
    for grid_t, grid_h, grid_w in grids:
        rows, columns = (np.arange(size // merge) // side for size in (grid_h, grid_w))
        frame = rows[:, None] * (columns[-1] + 1) + columns
        num_windows = int(frame[-1, -1]) + 1
        windows += [(first + index * num_windows + frame).ravel() for index in range(grid_t)]
        first += grid_t * num_windows
    window = np.concatenate(windows)
    num_tokens = np.bincount(window)
    tokens = np.lexsort((window, num_tokens[window]))  # stable: inside a window as they were
    patches = torch.from_numpy((tokens[:, None] * merge**2 + np.arange(merge**2)).ravel())
    inverse = torch.empty_like(patches)
    inverse[patches] = torch.arange(len(patches))
    return PatchOrder(patches=patches, inverse=inverse, lengths=tuple((np.sort(num_tokens) * merge**2).tolist()))


def _groups(lengths: Sequence[int], rotation: Rotation) -> tuple[SegmentGroup, ...]:
    groups: list[SegmentGroup] = []
    start = 0
    for length in dict.fromkeys(lengths):
        num_segments = sum(each == length for each in lengths)
        patches = slice(start, start + num_segments * length)
        own = Rotation(rotation.cos[patches], rotation.sin[patches])
        groups.append(SegmentGroup(patches=patches, num_segments=num_segments, rotation=own))
        start = patches.stop
    return tuple(groups)
