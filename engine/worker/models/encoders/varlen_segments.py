"""Variable-length attention segments of a vision encoder: frames or windows, and the patch orders they need.

Patches are in frame order. With windowed attention they are permuted to window order, and back for the few blocks with
full attention over a frame. Segments of equal length are computed as one batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from glimpse.engine.worker.layers.ops import Ops
from glimpse.engine.worker.layers.rotary import Rotation

Grid = tuple[int, ...]
"""Patches of an image or video in time, height and width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchOrder:
    """A permutation of patches from frame order."""

    patches: Tensor
    """int64 [patches]: for each patch in the new order, its index in frame order."""
    inverse: Tensor
    """int64 [patches]: for each patch in frame order, its index in the new order."""
    lengths: tuple[int, ...]
    """Number of patches of each window; windows of equal length are consecutive."""

    def to(self, device: torch.device) -> "PatchOrder":
        return replace(self, patches=self.patches.to(device), inverse=self.inverse.to(device))


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentGroup:
    """Consecutive segments with equally many patches."""

    patches: slice
    num_segments: int
    rotation: Rotation
    """Rotation of these patches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VarlenSegments:
    """The segments of a batch of patches, as a block needs them."""

    groups: tuple[SegmentGroup, ...]
    order: PatchOrder | None = None
    """Order of the block's patches, if it differs from the order of the segments."""

    def with_order(self, order: PatchOrder) -> "VarlenSegments":
        """Returns the same segments for patches in another order."""
        return replace(self, order=order)

    def attend(self, qkv: Tensor, ops: Ops) -> Tensor:
        """[patches, 3 (query, key, value), heads, head_dim], which may be overwritten → [patches, heads, head_dim]"""
        if self.order is not None:
            qkv = qkv[self.order.inverse]
        parts = [ops.attend_segments(qkv[group.patches], group.rotation, group.num_segments) for group in self.groups]
        attended = parts[0] if len(parts) == 1 else torch.cat(parts)
        return attended if self.order is None else attended[self.order.patches]


def frame_segments(grids: Sequence[Grid], rotation: Rotation) -> VarlenSegments:
    """Returns frames as segments. Frames of equal size must be consecutive, and `rotation` in the same order."""
    lengths = [grid_h * grid_w for grid_t, grid_h, grid_w in grids for _ in range(grid_t)]
    return VarlenSegments(groups=_groups(lengths, rotation))


def window_segments(order: PatchOrder, rotation: Rotation) -> VarlenSegments:
    """Returns windows as segments. `rotation` is in frame order."""
    return VarlenSegments(
        groups=_groups(order.lengths, Rotation(rotation.cos[order.patches], rotation.sin[order.patches]))
    )


def window_order(grids: Sequence[Grid], merge: int, side: int) -> PatchOrder:
    """Returns the window order of patches, with windows of equal length consecutive.

    Args:
        grids: numbers of patches of the media in time, height and width.
        merge: patches per side of the square that becomes one token.
        side: tokens per side of a window.
    """
    windows: list[np.ndarray] = []  # [tokens]: index of each token's window
    first = 0
    for grid_t, grid_h, grid_w in grids:
        rows, columns = (np.arange(size // merge) // side for size in (grid_h, grid_w))
        frame = rows[:, None] * (columns[-1] + 1) + columns
        num_windows = int(frame[-1, -1]) + 1
        windows += [(first + index * num_windows + frame).ravel() for index in range(grid_t)]
        first += grid_t * num_windows
    window = np.concatenate(windows)
    num_tokens = np.bincount(window)
    tokens = np.lexsort((window, num_tokens[window]))  # stable: keeps the order within a window
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
        group_rotation = Rotation(rotation.cos[patches], rotation.sin[patches])
        groups.append(SegmentGroup(patches=patches, num_segments=num_segments, rotation=group_rotation))
        start = patches.stop
    return tuple(groups)
