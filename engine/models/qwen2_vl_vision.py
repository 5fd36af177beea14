"""The vision towers of Qwen2-VL (arXiv 2409.12191) and Qwen2.5-VL (arXiv 2502.13923): from uint8 pixels to the rows
that stand for placeholder tokens.

Patches are ordered so that those that become one token are neighbours, as the reference image processor orders them
(transformers, models/qwen2_vl/image_processing_qwen2_vl.py). Where attention ends at windows, each block but a few sees
them in the order of their windows (`glimpse.engine.models.varlen_segments`).
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from glimpse.engine.layers.linear import Linear
from glimpse.engine.layers.mlp import GatedMLP, QuickGeluMLP
from glimpse.engine.layers.norm import RMSNorm
from glimpse.engine.layers.ops import Norm, Ops
from glimpse.engine.layers.rotary import planar_rotation
from glimpse.engine.model_config import VisionConfig
from glimpse.engine.models.varlen_segments import VarlenSegments, frame_segments, window_order, window_segments
from glimpse.engine.tensors.transfer import upload_bytes

NORM_EPS = 1e-6

Medium = tuple[memoryview, tuple[int, int, int]]
"""A medium's pixels, and its patches in time, height and width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelStatistics:
    """How the tower's training pictures were normalised: (value / 255 - mean) / std, for red, green and blue."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


class VisionTower(nn.Module):
    """Encodes pictures and clips, all those of a step in one packed batch."""

    def __init__(self, config: VisionConfig, statistics: PixelStatistics) -> None:
        super().__init__()
        self.config = config
        self.statistics = statistics
        width = config.embed_dim
        patch_values = config.in_channels * config.temporal_patch_size * config.patch_size**2
        # The reference's Conv3d, whose stride is its size, is this product; as a convolution it is slow.
        self.patch_embed = Linear(patch_values, width, bias=False)
        self.blocks = nn.ModuleList(VisionBlock(config) for _ in range(config.depth))
        self.merger = PatchMerger(config)

    def forward(self, media: Sequence[Medium], ops: Ops) -> list[Tensor]:
        """Encodes media.

        Args:
            media: at least one; pixels are uint8, row-major, [frames, grid_h · patch_size, grid_w · patch_size, 3].
            ops: the backend.

        Returns:
            of each medium [grid_t · grid_h · grid_w / spatial_merge_size², hidden_size of the decoder]
        """
        order = by_frame_size([grid_thw for _, grid_thw in media])
        grids = [media[index][1] for index in order]
        device = self.merger.ln_q.weight.device
        hidden = torch.cat([self._embed(cut_patches(*media[index], self.config, device)) for index in order])
        hidden = self._through_blocks(hidden, grids, ops)
        parts = self.merger(hidden).split([prod(grid) // self.config.spatial_merge_size**2 for grid in grids])
        # Copies, where there are several: a view would keep all of them in memory until the last is evicted.
        outputs = [part.clone() for part in parts] if len(parts) > 1 else list(parts)
        return [outputs[order.index(index)] for index in range(len(media))]

    def _embed(self, patches: Tensor) -> Tensor:
        """uint8 [patches, channels, values] → [patches, width]"""
        values = normalise(patches, self.statistics).flatten(1)
        return self.patch_embed(values.to(self.merger.ln_q.weight.dtype))

    def _through_blocks(self, hidden: Tensor, grids: Sequence[tuple[int, int, int]], ops: Ops) -> Tensor:
        """[patches, width] → [patches, width], of media that stand in the order of `by_frame_size`."""
        config, device = self.config, hidden.device
        positions = torch.cat([patch_positions(grid, config.spatial_merge_size, device) for grid in grids])
        rotation = planar_rotation(positions, head_dim=config.embed_dim // config.num_heads)
        frames = frame_segments(grids, rotation)
        if config.windows is None:
            for block in self.blocks:
                hidden = block(hidden, ops, frames)
            return hidden
        order = window_order(grids, config.spatial_merge_size, config.windows.side).to(device)
        windows, frames = window_segments(order, rotation), frames.seen_from(order)
        hidden = hidden[order.patches]
        for index, block in enumerate(self.blocks):
            hidden = block(hidden, ops, frames if index in config.windows.unbounded_blocks else windows)
        return hidden[order.inverse]

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter under its name in a published checkpoint, less the prefix "visual."."""
        config = self.config
        side = config.patch_size
        kernel = (config.embed_dim, config.in_channels, config.temporal_patch_size, side, side)
        yield "patch_embed.proj.weight", self.patch_embed.weight.data.view(kernel)
        for index, block in enumerate(self.blocks):
            assert isinstance(block, VisionBlock)
            yield from ((f"blocks.{index}.{name}", tensor) for name, tensor in block.named_weights())
        yield from ((f"merger.{name}", parameter.data) for name, parameter in self.merger.named_parameters())


class VisionBlock(nn.Module):
    """Attention and feed-forward, each after a norm."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.norm1 = make_norm(config)
        self.attn = VisionAttention(config.embed_dim, config.num_heads)
        self.norm2 = make_norm(config)
        self.mlp: GatedMLP | QuickGeluMLP = (
            GatedMLP(config.embed_dim, config.intermediate_size, bias=True)
            if config.gated
            else QuickGeluMLP(config.embed_dim, config.intermediate_size)
        )

    def forward(self, hidden: Tensor, ops: Ops, runs: VarlenSegments) -> Tensor:
        """[patches, width] → [patches, width]; each patch attends to all patches of its own run."""
        qkv = ops.norm_linear(hidden, self.norm1, self.attn.qkv).unflatten(-1, (3, self.attn.num_heads, -1))
        hidden = ops.linear_add(runs.attend(qkv, ops).flatten(1), self.attn.proj, hidden)
        return ops.norm_mlp_add(hidden, self.norm2, self.mlp)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter under its name in a published checkpoint, less the block's prefix."""
        for name in ("norm1", "attn", "norm2"):
            yield from ((f"{name}.{part}", each.data) for part, each in self.get_submodule(name).named_parameters())
        yield from ((f"mlp.{name}", tensor) for name, tensor in self.mlp.named_weights())


class VisionAttention(nn.Module):
    """The weights of attention."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = Linear(width, 3 * width, bias=True)
        self.proj = Linear(width, width, bias=True)


class PatchMerger(nn.Module):
    """Makes one decoder row of each square of patches."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.merged_width = config.spatial_merge_size**2 * config.embed_dim
        self.ln_q = make_norm(config)
        self.mlp = nn.Sequential(
            Linear(self.merged_width, self.merged_width, bias=True),
            nn.GELU(),
            Linear(self.merged_width, config.hidden_size, bias=True),
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """[patches, width] → [patches / num_merged, hidden_size]"""
        return self.mlp(self.ln_q(hidden).view(-1, self.merged_width))


def make_norm(config: VisionConfig) -> Norm:
    """Of the tower's kind."""
    return RMSNorm(config.embed_dim, eps=NORM_EPS) if config.gated else nn.LayerNorm(config.embed_dim, eps=NORM_EPS)


def by_frame_size(grids: Sequence[tuple[int, int, int]]) -> list[int]:
    """The indices of media so ordered that those whose frames have as many patches stand together."""
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for index, (_, grid_h, grid_w) in enumerate(grids):
        groups[grid_h * grid_w].append(index)
    return [index for group in groups.values() for index in group]


def cut_patches(
    pixels: memoryview, grid_thw: tuple[int, int, int], config: VisionConfig, device: torch.device
) -> Tensor:
    """uint8 [patches, channels, temporal_patch_size · patch_size²], squares of patches to be merged in sequence.

    The device cuts: what goes there is each pixel once. Frames that are missing to fill the last patch in time repeat
    the last one: a picture is its own second frame.
    """
    grid_t, grid_h, grid_w = grid_thw
    side, merge, depth = config.patch_size, config.spatial_merge_size, config.temporal_patch_size
    frames = upload_bytes(pixels, device).view(-1, grid_h * side, grid_w * side, config.in_channels)
    num_missing = grid_t * depth - len(frames)
    if len(frames) == 1:
        frames = frames.expand(depth, -1, -1, -1)
    elif num_missing:
        frames = torch.cat([frames, frames[-1:].expand(num_missing, -1, -1, -1)])
    squares = frames.reshape(grid_t, depth, grid_h // merge, merge, side, grid_w // merge, merge, side, -1)
    patches = squares.permute(0, 2, 5, 3, 6, 8, 1, 4, 7)  # t, rows, columns, merge, merge, channel, depth, side, side
    return patches.reshape(-1, config.in_channels, depth * side**2)


def normalise(patches: Tensor, statistics: PixelStatistics) -> Tensor:
    """uint8 [patches, channels, values] → float32 of the same shape."""
    mean = torch.tensor(statistics.mean, device=patches.device)[:, None]
    std = torch.tensor(statistics.std, device=patches.device)[:, None]
    return (patches.float() - 255 * mean) / (255 * std)


def patch_positions(grid_thw: tuple[int, int, int], merge: int, device: torch.device) -> Tensor:
    """int64 [patches, 2]: row and column of each patch, in the order of `cut_patches`."""
    grid_t, grid_h, grid_w = grid_thw
    sides = (torch.arange(grid_h, device=device), torch.arange(grid_w, device=device))
    rows, columns = torch.meshgrid(*sides, indexing="ij")
    squares = torch.stack([rows, columns], dim=-1).view(grid_h // merge, merge, grid_w // merge, merge, 2)
    return squares.transpose(1, 2).reshape(-1, 2).repeat(grid_t, 1)
