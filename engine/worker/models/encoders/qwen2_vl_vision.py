"""Vision encoders of Qwen2-VL (arXiv 2409.12191) and Qwen2.5-VL (arXiv 2502.13923): from uint8 pixels to the embeddings
of placeholder tokens.

Patches that become one token are consecutive, as in the reference image processor (transformers,
models/qwen2_vl/image_processing_qwen2_vl.py). With windowed attention, patches are in window order in all blocks except
those with full attention (`glimpse.engine.worker.models.encoders.varlen_segments`).
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import prod
from typing import Literal

import torch
from torch import Tensor, nn

from glimpse.engine.checkpoint.model_config.encoders import VisionConfig
from glimpse.engine.core.plan import Encode
from glimpse.engine.worker.layers.linear import Linear
from glimpse.engine.worker.layers.mlp import GatedMLP, PlainMLP
from glimpse.engine.worker.layers.norm import HeadNorms, RMSNorm
from glimpse.engine.worker.layers.ops import Norm, Ops
from glimpse.engine.worker.layers.pixels import PixelStatistics, normalize
from glimpse.engine.worker.layers.quantized import named_tensors, prefixed, weights_of_layers
from glimpse.engine.worker.layers.rotary import Rotation, planar_rotation
from glimpse.engine.worker.models.encoders.encoder import Encoder
from glimpse.engine.worker.models.encoders.varlen_segments import (
    Grid,
    VarlenSegments,
    frame_segments,
    window_order,
    window_segments,
)
from glimpse.engine.worker.models.encoders.vit import resized_positions
from glimpse.engine.worker.tensors.transfer import upload_bytes


class VisionTower(Encoder):
    """Encodes all images and videos of a step in one packed batch."""

    def __init__(self, config: VisionConfig, statistics: PixelStatistics) -> None:
        super().__init__()
        self.config = config
        self.statistics = statistics
        patch_values = config.in_channels * config.temporal_patch_size * config.patch_size**2
        # Equivalent to the reference implementation's Conv3d, whose stride equals its kernel size, and faster.
        self.patch_embed = Linear(patch_values, config.embed_dim, bias=config.patch_bias)
        self.blocks = nn.ModuleList(_block(config) for _ in range(config.depth))
        self.merger = PatchMerger(config)

    def encode(self, media: Sequence[Encode], ops: Ops) -> list[Tensor]:
        """Encodes images and videos.

        Args:
            media: at least one; pixels are uint8 [frames, grid_h · patch_size, grid_w · patch_size, 3], row-major. The
                grid is the numbers of patches in time, height and width.

        Returns:
            For each image or video [grid_t · grid_h · grid_w / spatial_merge_size², encoder_row_width of the decoder].
        """
        order = by_frame_size([medium.grid for medium in media])
        ordered = [media[index] for index in order]
        hidden = torch.cat([self._embed(medium) for medium in ordered])
        rows = self._rows(hidden, [medium.grid for medium in ordered], ops)
        parts = rows.split([prod(medium.grid) // self.config.spatial_merge_size**2 for medium in ordered])
        # Copies if there are several: a view would keep all outputs in memory until the last is evicted.
        outputs = [part.clone() for part in parts] if len(parts) > 1 else list(parts)
        return [outputs[order.index(index)] for index in range(len(media))]

    def _embed(self, medium: Encode) -> Tensor:
        """Returns the embedded patches of a medium, [patches, width]."""
        weight = next(self.blocks[0].parameters())  # of a norm, which no backend replaces
        patches = cut_patches(medium.data, medium.grid, self.config, weight.device)
        return self.patch_embed(normalize(patches, self.statistics).flatten(1).to(weight.dtype))

    def _rows(self, hidden: Tensor, grids: Sequence[Grid], ops: Ops) -> Tensor:
        """[patches, width] → [tokens, encoder_row_width of the decoder], for media in the order of `by_frame_size`."""
        config, rotation = self.config, self._rotation(grids, hidden.device)
        frames = frame_segments(grids, rotation)
        if config.windows is None:
            for block in self.blocks:
                hidden = block(hidden, ops, frames)
            return self.merger(hidden)
        order = window_order(grids, config.spatial_merge_size, config.windows.side).to(hidden.device)
        windows, frames = window_segments(order, rotation), frames.with_order(order)
        hidden = hidden[order.patches]
        for index, block in enumerate(self.blocks):
            hidden = block(hidden, ops, frames if index in config.windows.full_attention_blocks else windows)
        return self.merger(hidden[order.inverse])

    def _rotation(self, grids: Sequence[Grid], device: torch.device) -> Rotation:
        positions = torch.cat([patch_positions(grid, self.config.spatial_merge_size, device) for grid in grids])
        return planar_rotation(positions, head_dim=self.config.embed_dim // self.config.num_heads)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """See `Encoder.named_weights`."""
        config = self.config
        side = config.patch_size
        kernel = (config.embed_dim, config.in_channels, config.temporal_patch_size, side, side)
        yield "visual.patch_embed.proj.weight", self.patch_embed.weight.data.view(kernel)
        if self.patch_embed.bias is not None:
            yield "visual.patch_embed.proj.bias", self.patch_embed.bias.data
        yield from weights_of_layers("visual.blocks.", self.blocks)
        yield from named_tensors(self.merger, "visual.merger")


class VisionBlock(nn.Module):
    """Attention and feed-forward, each preceded by a norm."""

    def __init__(
        self,
        width: int,
        num_heads: int,
        *,
        norms: tuple[Norm, Norm],
        mlp: GatedMLP | PlainMLP,
        bias: bool = True,
        head_norms: HeadNorms | None = None,
    ) -> None:
        super().__init__()
        self.norm1, self.norm2 = norms
        self.attn = VisionAttention(width, num_heads, bias=bias)
        self.head_norms = head_norms
        self.mlp = mlp

    def forward(self, hidden: Tensor, ops: Ops, segments: VarlenSegments) -> Tensor:
        """[patches, width] → [patches, width]; each patch attends to all patches of its segment."""
        qkv, num_heads = ops.norm_linear(hidden, self.norm1, self.attn.qkv), self.attn.num_heads
        if self.head_norms is not None:
            self.head_norms.normalize(qkv, num_kv_heads=num_heads)
        attended = segments.attend(qkv.unflatten(-1, (3, num_heads, -1)), ops)
        hidden = ops.linear_add(attended.flatten(1), self.attn.proj, hidden)
        return ops.norm_mlp_add(hidden, self.norm2, self.mlp)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names, without the block's prefix."""
        for name in ("norm1", "attn", "norm2"):
            yield from named_tensors(self.get_submodule(name), name)
        if (heads := self.head_norms) is not None and heads.key is not None:
            yield from (("attn.q_norm.weight", heads.query.weight.data), ("attn.k_norm.weight", heads.key.weight.data))
        yield from prefixed("mlp.", self.mlp.named_weights())


class VisionAttention(nn.Module):
    """The weights of attention."""

    def __init__(self, width: int, num_heads: int, *, bias: bool) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = Linear(width, (width, width, width), bias=bias)
        self.proj = Linear(width, width, bias=bias)


class PatchMerger(nn.Module):
    """Merges each square of patches into one row."""

    def __init__(self, config: VisionConfig, *, norms_squares: bool = False) -> None:
        """`norms_squares`: the norm is over a merged square instead of a patch."""
        super().__init__()
        self.merged_width = config.spatial_merge_size**2 * config.embed_dim
        self.norm_width = self.merged_width if norms_squares else config.embed_dim
        self.ln_q = _norm(config, self.norm_width)
        self.mlp = nn.Sequential(
            Linear(self.merged_width, self.merged_width, bias=True),
            nn.GELU(),
            Linear(self.merged_width, config.hidden_size, bias=True),
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """[patches, width] → [patches / num_merged, hidden_size]"""
        return self.mlp(self.ln_q(hidden.view(-1, self.norm_width)).view(-1, self.merged_width))


def _block(config: VisionConfig) -> VisionBlock:
    width, inner = config.embed_dim, config.intermediate_size
    gated = GatedMLP(width, inner, bias=config.block_bias) if config.gated else None
    mlp = gated or PlainMLP(width, inner, activation=config.activation)
    norms = (_norm(config, width), _norm(config, width))
    heads = HeadNorms(width // config.num_heads, eps=config.norm_eps) if config.head_norms else None
    return VisionBlock(width, config.num_heads, norms=norms, mlp=mlp, bias=config.block_bias, head_norms=heads)


def _norm(config: VisionConfig, width: int) -> Norm:
    return (RMSNorm if config.gated else nn.LayerNorm)(width, eps=config.norm_eps)


def by_frame_size(grids: Sequence[Grid]) -> list[int]:
    """Returns the indices of media, ordered so that those with equally many patches per frame are consecutive."""
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for index, (_, grid_h, grid_w) in enumerate(grids):
        groups[grid_h * grid_w].append(index)
    return [index for group in groups.values() for index in group]


def cut_patches(pixels: memoryview, grid_thw: Grid, config: VisionConfig, device: torch.device) -> Tensor:
    """Returns uint8 [patches, channels, temporal_patch_size · patch_size²], with patches to be merged consecutive.

    Patches are cut on the device, so each pixel is transferred once. The last frame is repeated to fill the last
    temporal patch; an image is repeated in the same way.
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


def placed_positions(
    table: Tensor, grid: Grid, merge: int, *, mode: Literal["bilinear", "bicubic"], align_corners: bool = False
) -> Tensor:
    """Returns the learned positions of a medium's patches, as `resized_positions` makes them for a frame.

    Args:
        grid: patches of the medium in time, height and width. All frames have the same positions.
        merge: patches per side of the square that becomes one token.

    Returns:
        float32 [patches, width], in the order of `cut_patches`.
    """
    resized = resized_positions(table, (grid[1], grid[2]), mode=mode, align_corners=align_corners)
    rows, columns = patch_positions(grid, merge, table.device).unbind(1)
    return resized[rows, columns]


def patch_positions(grid_thw: Grid, merge: int, device: torch.device) -> Tensor:
    """Returns int64 [patches, 2]: row and column of each patch, in the order of `cut_patches`."""
    grid_t, grid_h, grid_w = grid_thw
    sides = (torch.arange(grid_h, device=device), torch.arange(grid_w, device=device))
    rows, columns = torch.meshgrid(*sides, indexing="ij")
    squares = torch.stack([rows, columns], dim=-1).view(grid_h // merge, merge, grid_w // merge, merge, 2)
    return squares.transpose(1, 2).reshape(-1, 2).repeat(grid_t, 1)
