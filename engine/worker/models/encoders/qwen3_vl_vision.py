"""Vision encoder of Qwen3-VL: from uint8 pixels to the rows of placeholder tokens.

A row is the embedding of a token followed by what the decoder's first layers add to its hidden state (DeepStack,
arXiv 2406.04334). Numerics follow `Qwen3VLVisionModel` of transformers (models/qwen3_vl/modeling_qwen3_vl.py). Patches
are in the order of `glimpse.engine.worker.models.encoders.qwen2_vl_vision`.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from glimpse.engine.checkpoint.model_config.encoders import Qwen3VisionConfig
from glimpse.engine.worker.layers.linear import Linear
from glimpse.engine.worker.layers.mlp import PlainMLP
from glimpse.engine.worker.layers.ops import Ops
from glimpse.engine.worker.layers.pixels import PixelStatistics, normalize
from glimpse.engine.worker.layers.rotary import planar_rotation
from glimpse.engine.worker.models.encoders.qwen2_vl_vision import (
    NORM_EPS,
    Medium,
    VisionBlock,
    cut_patches,
    encode_packed,
    patch_positions,
)
from glimpse.engine.worker.models.encoders.varlen_segments import frame_segments

Grid = tuple[int, int, int]


class Qwen3VisionTower(nn.Module):
    """Encodes all images and videos of a step in one packed batch."""

    def __init__(self, config: Qwen3VisionConfig, statistics: PixelStatistics) -> None:
        super().__init__()
        self.config = config
        self.statistics = statistics
        width = config.embed_dim
        patch_values = config.in_channels * config.temporal_patch_size * config.patch_size**2
        self.patch_embed = Linear(patch_values, width, bias=True)
        table = torch.empty(config.position_side**2, width)
        self.position_table = nn.Parameter(table, requires_grad=False)
        self.blocks = nn.ModuleList(_block(config) for _ in range(config.depth))
        self.merger = Qwen3PatchMerger(config, norm_width=width)
        merged_width = config.spatial_merge_size**2 * width
        self.deepstack_mergers = nn.ModuleList(
            Qwen3PatchMerger(config, norm_width=merged_width) for _ in config.deepstack_blocks
        )

    def forward(self, media: Sequence[Medium], ops: Ops) -> list[Tensor]:
        """Encodes images and videos.

        Args:
            media: at least one; pixels are uint8 [frames, grid_h · patch_size, grid_w · patch_size, 3], row-major.
            ops: backend.

        Returns:
            For each image or video [grid_t · grid_h · grid_w / spatial_merge_size², encoder_row_width of the decoder].
        """
        return encode_packed(media, self.config.spatial_merge_size, lambda ordered: self._encode(ordered, ops))

    def _encode(self, media: Sequence[Medium], ops: Ops) -> Tensor:
        """Returns [tokens, row width] for media in the order of `by_frame_size`."""
        config, device = self.config, self.position_table.device
        grids = [grid for _, grid in media]
        positions = torch.cat([patch_positions(grid, config.spatial_merge_size, device) for grid in grids])
        rotation = planar_rotation(positions, head_dim=config.embed_dim // config.num_heads)
        frames = frame_segments(grids, rotation)
        hidden = torch.cat([self._embed(medium) for medium in media])
        added: list[Tensor] = []
        for index, block in enumerate(self.blocks):
            hidden = block(hidden, ops, frames)
            if index in config.deepstack_blocks:
                added.append(self.deepstack_mergers[len(added)](hidden))
        return torch.cat([self.merger(hidden), *added], dim=1)

    def _embed(self, medium: Medium) -> Tensor:
        """Returns the embedded patches of a medium with their positions, [patches, width]."""
        dtype, device = self.position_table.dtype, self.position_table.device
        _, grid = medium
        patches = normalize(cut_patches(*medium, self.config, device), self.statistics).flatten(1)
        positions = interpolate_positions(self.position_table, grid, merge=self.config.spatial_merge_size)
        return self.patch_embed(patches.to(dtype)) + positions.to(dtype)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names, without the prefix "visual."."""
        config = self.config
        side = config.patch_size
        kernel = (config.embed_dim, config.in_channels, config.temporal_patch_size, side, side)
        yield "patch_embed.proj.weight", self.patch_embed.weight.data.view(kernel)
        assert self.patch_embed.bias is not None
        yield "patch_embed.proj.bias", self.patch_embed.bias.data
        yield "pos_embed.weight", self.position_table.data
        for index, block in enumerate(self.blocks):
            assert isinstance(block, VisionBlock)
            for name, tensor in block.named_weights():
                yield f"blocks.{index}.{name.replace('mlp.fc', 'mlp.linear_fc')}", tensor
        yield from ((f"merger.{name}", parameter.data) for name, parameter in self.merger.named_parameters())
        mergers = self.deepstack_mergers.named_parameters()
        yield from ((f"deepstack_merger_list.{name}", parameter.data) for name, parameter in mergers)


class Qwen3PatchMerger(nn.Module):
    """Merges each square of patches into one row."""

    def __init__(self, config: Qwen3VisionConfig, *, norm_width: int) -> None:
        """`norm_width`: that of a patch, or of a merged square."""
        super().__init__()
        self.merged_width = config.spatial_merge_size**2 * config.embed_dim
        self.norm = nn.LayerNorm(norm_width, eps=NORM_EPS)
        self.linear_fc1 = Linear(self.merged_width, self.merged_width, bias=True)
        self.linear_fc2 = Linear(self.merged_width, config.hidden_size, bias=True)

    def forward(self, hidden: Tensor) -> Tensor:
        """[patches, width] → [patches / num_merged, hidden_size]"""
        squares = self.norm(hidden.view(-1, *self.norm.normalized_shape)).view(-1, self.merged_width)
        return self.linear_fc2(functional.gelu(self.linear_fc1(squares)))


def _block(config: Qwen3VisionConfig) -> VisionBlock:
    width = config.embed_dim
    mlp = PlainMLP(width, config.intermediate_size, activation="gelu_tanh")
    norms = (nn.LayerNorm(width, eps=NORM_EPS), nn.LayerNorm(width, eps=NORM_EPS))
    return VisionBlock(width, config.num_heads, norms=norms, mlp=mlp)


def interpolate_positions(table: Tensor, grid: Grid, *, merge: int) -> Tensor:
    """Returns learned positions, interpolated bilinearly from a square grid to that of a medium.

    Args:
        table: [side · side, width]: rows of the learned grid. Its corners lie on those of the medium's grid.
        grid: patches of the medium in time, height and width. All frames have the same positions.
        merge: patches per side of the square that becomes one token.

    Returns:
        float32 [patches, width], in the order of `patch_positions`.
    """
    grid_t, grid_h, grid_w = grid
    side = round(len(table) ** 0.5)
    learned = table.float().view(side, side, -1)
    rows = _interpolate(learned, grid_h)  # [grid_h, side, width]
    positions = _interpolate(rows.transpose(0, 1), grid_w)  # [grid_w, grid_h, width]
    squares = positions.reshape(grid_w // merge, merge, grid_h // merge, merge, -1)
    return squares.permute(2, 0, 3, 1, 4).flatten(0, 3).repeat(grid_t, 1)


def _interpolate(values: Tensor, count: int) -> Tensor:
    """Returns [count, …], interpolated linearly from [side, …]; the first and last values stay."""
    last = len(values) - 1
    places = torch.arange(count, device=values.device) * last / max(count - 1, 1)
    below = places.floor().long()
    share = (places - below).view(-1, *[1] * (values.dim() - 1))
    return torch.lerp(values[below], values[(below + 1).clamp(max=last)], share)
