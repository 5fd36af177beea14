"""Qwen2-VL's vision tower (arXiv 2409.12191): from uint8 pixels to the rows that stand for placeholder tokens.

Patches are ordered so that those that become one token are neighbours, as the reference image processor orders them
(transformers, models/qwen2_vl/image_processing_qwen2_vl.py).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from engine.config import VisionConfig
from engine.layers.linear import Linear
from engine.layers.mlp import QuickGeluMLP
from engine.layers.ops import Ops
from engine.layers.rotary import Rotation, planar_rotation

NORM_EPS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelStatistics:
    """How the tower's training pictures were normalised: (value / 255 - mean) / std, for red, green and blue."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


class VisionTower(nn.Module):
    """Encodes one picture or clip at a time."""

    def __init__(self, config: VisionConfig, statistics: PixelStatistics) -> None:
        super().__init__()
        self.config = config
        self.statistics = statistics
        width = config.embed_dim
        patch_values = config.in_channels * config.temporal_patch_size * config.patch_size**2
        # The reference's Conv3d, whose stride is its size, is this product; as a convolution it is slow.
        self.patch_embed = Linear(patch_values, width, bias=False)
        self.blocks = nn.ModuleList(VisionBlock(config) for _ in range(config.depth))
        self.merger = PatchMerger(width, config.spatial_merge_size**2, config.hidden_size)

    def forward(self, pixels: memoryview, grid_thw: tuple[int, int, int], ops: Ops) -> Tensor:
        """Encodes a medium.

        Args:
            pixels: uint8, row-major, [frames, grid_h · patch_size, grid_w · patch_size, 3].
            grid_thw: patches in time, height and width.
            ops: the backend.

        Returns:
            [grid_t · grid_h · grid_w / spatial_merge_size², hidden_size of the decoder]
        """
        device, dtype = self.merger.ln_q.weight.device, self.merger.ln_q.weight.dtype
        patches = normalise(cut_patches(pixels, grid_thw, self.config).to(device), self.statistics)
        hidden = self.patch_embed(patches.flatten(1).to(dtype))  # [patches, width]
        positions = patch_positions(grid_thw, self.config.spatial_merge_size).to(device)
        rotation = planar_rotation(positions, head_dim=self.config.embed_dim // self.config.num_heads)
        for block in self.blocks:
            hidden = block(hidden, ops, rotation, grid_thw[0])
        return self.merger(hidden)

    def stored_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter under its name in a published checkpoint, less the prefix "visual."."""
        config = self.config
        side = config.patch_size
        kernel = (config.embed_dim, config.in_channels, config.temporal_patch_size, side, side)
        for name, parameter in self.named_parameters():
            if name == "patch_embed.weight":
                yield "patch_embed.proj.weight", parameter.data.view(kernel)
            else:
                yield name, parameter.data


class VisionBlock(nn.Module):
    """Attention and feed-forward, each after a LayerNorm."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.embed_dim, eps=NORM_EPS)
        self.attn = VisionAttention(config.embed_dim, config.num_heads)
        self.norm2 = nn.LayerNorm(config.embed_dim, eps=NORM_EPS)
        self.mlp = QuickGeluMLP(config.embed_dim, int(config.embed_dim * config.mlp_ratio))

    def forward(self, hidden: Tensor, ops: Ops, rotation: Rotation, num_frames: int) -> Tensor:
        """[patches, width] → [patches, width]; each patch attends to all patches of its own frame."""
        qkv = ops.norm_linear(hidden, self.norm1, self.attn.qkv)
        attended = ops.attend_frames(qkv.unflatten(-1, (3, self.attn.num_heads, -1)), rotation, num_frames)
        hidden = ops.linear_add(attended.flatten(1), self.attn.proj, hidden)
        return ops.norm_mlp_add(hidden, self.norm2, self.mlp)


class VisionAttention(nn.Module):
    """The weights of attention."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = Linear(width, 3 * width, bias=True)
        self.proj = Linear(width, width, bias=True)


class PatchMerger(nn.Module):
    """Makes one decoder row of each square of patches."""

    def __init__(self, width: int, num_merged: int, hidden_size: int) -> None:
        super().__init__()
        self.merged_width = num_merged * width
        self.ln_q = nn.LayerNorm(width, eps=NORM_EPS)
        self.mlp = nn.Sequential(
            Linear(self.merged_width, self.merged_width, bias=True),
            nn.GELU(),
            Linear(self.merged_width, hidden_size, bias=True),
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """[patches, width] → [patches / num_merged, hidden_size]"""
        return self.mlp(self.ln_q(hidden).view(-1, self.merged_width))


def cut_patches(pixels: memoryview, grid_thw: tuple[int, int, int], config: VisionConfig) -> Tensor:
    """uint8 [patches, channels, temporal_patch_size · patch_size²], squares of patches to be merged in sequence.

    Frames that are missing to fill the last patch in time repeat the last one: a picture is its own second frame.
    """
    grid_t, grid_h, grid_w = grid_thw
    side, merge, depth = config.patch_size, config.spatial_merge_size, config.temporal_patch_size
    frames = np.frombuffer(pixels, dtype=np.uint8).reshape(-1, grid_h * side, grid_w * side, config.in_channels)
    frames = np.concatenate([frames, *[frames[-1:]] * (grid_t * depth - len(frames))])
    squares = frames.reshape(grid_t, depth, grid_h // merge, merge, side, grid_w // merge, merge, side, -1)
    patches = squares.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7)  # t, rows, columns, merge, merge, channel, depth, side, side
    return torch.from_numpy(np.ascontiguousarray(patches).reshape(-1, config.in_channels, depth * side**2))


def normalise(patches: Tensor, statistics: PixelStatistics) -> Tensor:
    """uint8 [patches, channels, values] → float32 of the same shape."""
    mean = torch.tensor(statistics.mean, device=patches.device)[:, None]
    std = torch.tensor(statistics.std, device=patches.device)[:, None]
    return (patches.float() - 255 * mean) / (255 * std)


def patch_positions(grid_thw: tuple[int, int, int], merge: int) -> Tensor:
    """int64 [patches, 2]: row and column of each patch, in the order of `cut_patches`."""
    grid_t, grid_h, grid_w = grid_thw
    rows, columns = torch.meshgrid(torch.arange(grid_h), torch.arange(grid_w), indexing="ij")
    squares = torch.stack([rows, columns], dim=-1).view(grid_h // merge, merge, grid_w // merge, merge, 2)
    return squares.transpose(1, 2).reshape(-1, 2).repeat(grid_t, 1)
