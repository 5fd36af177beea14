"""The encoder of Segment Anything (arXiv 2304.02643) in DeepSeek-OCR-2: from patches of pixels to positions that stand
for 4² patches each.

Numerics follow transformers' `DeepseekOcr2SamVisionEncoder` (models/deepseek_ocr2/modeling_deepseek_ocr2.py).
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from glimpse.engine.checkpoint.model_config.encoders import SamConfig
from glimpse.engine.worker.layers.linear import Linear, empty_parameter
from glimpse.engine.worker.layers.ops import Ops
from glimpse.engine.worker.layers.pixels import PixelStatistics, normalize
from glimpse.engine.worker.layers.quantized import named_tensors, weights_of_layers
from glimpse.engine.worker.models.encoders.gelu_mlp import GeluMLP
from glimpse.engine.worker.models.encoders.vit import resized_positions

_NECK_EPS = 1e-6


class SamTower(nn.Module):
    """Encodes squares of equally many patches in one batch."""

    def __init__(self, config: SamConfig, statistics: PixelStatistics) -> None:
        super().__init__()
        self.config, self.statistics = config, statistics
        width, (neck, first, second) = config.width, config.channels
        # Equivalent to the reference implementation's Conv2d, whose stride equals its kernel size.
        self.patch_embedding = Linear(3 * config.patch_size**2, width, bias=True)
        self.positions = empty_parameter(1, config.position_side, config.position_side, width)
        self.layers = nn.ModuleList(
            SamLayer(config, None if index in config.full_attention_layers else config.window)
            for index in range(config.num_layers)
        )
        self.narrowing = Linear(width, neck, bias=False)
        self.neck_norm1, self.neck_norm2 = (nn.LayerNorm(neck, eps=_NECK_EPS) for _ in range(2))
        self.smoothing = nn.Conv2d(neck, neck, kernel_size=3, padding=1, bias=False)
        self.halving1 = nn.Conv2d(neck, first, kernel_size=3, stride=2, padding=1, bias=False)
        self.halving2 = nn.Conv2d(first, second, kernel_size=3, stride=2, padding=1, bias=False)

    def forward(self, squares: Tensor, ops: Ops) -> Tensor:
        """Encodes squares.

        Args:
            squares: uint8 [squares, side, side, patch_size, patch_size, 3]: their patches.

        Returns:
            [squares, (side / 4)², channels]: positions row by row.
        """
        num_squares, side = squares.shape[:2]
        patches = squares.flatten(0, 2).permute(0, 3, 1, 2).flatten(2)  # [patches, 3, patch_size²]
        inputs = normalize(patches, self.statistics).flatten(1).to(self.positions.dtype)
        hidden = self.patch_embedding(inputs).view(num_squares, side, side, -1) + self._positions(side)
        for layer in self.layers:
            hidden = layer(hidden, ops)
        narrow = ops.linear_add(hidden.flatten(0, 2), self.narrowing, None).view(num_squares, side, side, -1)
        smooth = self.smoothing(self.neck_norm1(narrow).movedim(-1, 1)).movedim(1, -1)
        return self.halving2(self.halving1(self.neck_norm2(smooth).movedim(-1, 1))).flatten(2).mT

    def _positions(self, side: int) -> Tensor:
        """Returns the learned positions, resized as an image is: [1, side, side, width]"""
        if side == self.config.position_side:
            return self.positions
        resized = resized_positions(self.positions.flatten(0, 2), (side, side), mode="bicubic", antialias=True)
        return resized[None].to(self.positions.dtype)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names, without the encoder's prefix."""
        side = self.config.patch_size
        for name, parameter in self.patch_embedding.named_parameters():
            shape = (-1, 3, side, side) if name == "weight" else (-1,)
            yield f"patch_embed.projection.{name}", parameter.data.view(shape)
        yield "pos_embed", self.positions.data
        yield from weights_of_layers("layers.", self.layers)
        yield "neck.conv1.weight", self.narrowing.weight.data[..., None, None]
        yield "neck.conv2.weight", self.smoothing.weight.data
        for number, norm in enumerate((self.neck_norm1, self.neck_norm2), 1):
            yield from named_tensors(norm, f"neck.layer_norm{number}")
        yield "proj.conv1.weight", self.halving1.weight.data
        yield "proj.conv2.weight", self.halving2.weight.data


class SamLayer(nn.Module):
    """Attention within windows or to all patches of a square, and feed-forward, each preceded by a LayerNorm."""

    def __init__(self, config: SamConfig, window: int | None) -> None:
        """`window`: the side of windows in patches; None for attention to all patches."""
        super().__init__()
        width, side = config.width, window or config.position_side
        self.num_heads, self.window = config.num_heads, window
        self.layer_norm1 = nn.LayerNorm(width, eps=config.norm_eps)
        self.qkv = Linear(width, 3 * width, bias=config.qkv_bias)
        self.out = Linear(width, width, bias=True)
        head_dim = width // config.num_heads
        self.row_distances, self.column_distances = (empty_parameter(2 * side - 1, head_dim) for _ in range(2))
        self.mlp = GeluMLP(width, config.intermediate_size, width, norm=nn.LayerNorm(width, eps=config.norm_eps))

    def forward(self, hidden: Tensor, ops: Ops) -> Tensor:
        """[squares, side, side, width] → the same"""
        side, rows = hidden.shape[1], hidden.flatten(0, 2)
        normed = self.layer_norm1(hidden)
        windows = normed if self.window is None else _windows(normed, self.window)
        attended = self._attend(windows, ops)
        if self.window is not None:
            attended = _without_windows(attended, len(hidden), side)
        rows = ops.linear_add(attended.flatten(0, 2), self.out, rows)
        return self.mlp(rows, ops, rows).view(hidden.shape)

    def _attend(self, windows: Tensor, ops: Ops) -> Tensor:
        """Returns what patches attend to in their window: [windows, side, side, width] → the same.

        The score of two patches has two terms more than the product of query and key: those of the query with what is
        learned for their distance in rows, and in columns. They are part of one product here: a head has a dimension
        more for each row and column, in which keys have 1 at their own and queries these terms. So no scores are
        stored, which would take gigabytes.
        """
        side, heads = windows.shape[1], self.num_heads
        qkv = ops.linear_add(windows.flatten(0, 2), self.qkv, None).unflatten(-1, (3, heads, -1))
        head_dim = qkv.shape[-1]
        size = head_dim + 2 * side
        joined = qkv.new_zeros(*qkv.shape[:-1], size)  # [patches, 3 (query, key, value), heads, size]
        joined[..., :head_dim] = qkv
        # The operation multiplies products by size ** -0.5.
        query = joined[:, 0].mul_((size / head_dim) ** 0.5)
        grid = qkv[:, 0].view(*windows.shape[:3], heads, head_dim)
        by_row, by_column = query[..., head_dim:].view(*grid.shape[:-1], 2 * side).chunk(2, dim=-1)
        by_row.copy_(torch.einsum("wrchd,rkd->wrchk", grid, _between(self.row_distances, side) * size**0.5))
        by_column.copy_(torch.einsum("wrchd,ckd->wrchk", grid, _between(self.column_distances, side) * size**0.5))
        own = functional.one_hot(torch.arange(side, device=qkv.device), side).to(qkv.dtype)
        places = joined[:, 1, :, head_dim:].view(*grid.shape[:-1], 2 * side)
        places[..., :side] = own[:, None, None]
        places[..., side:] = own[:, None]
        return ops.attend_segments(joined, None, len(windows))[..., :head_dim].reshape(windows.shape)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names, without the layer's prefix."""
        yield from named_tensors(self.layer_norm1, "layer_norm1")
        yield from self.qkv.named_weights("attn.qkv")
        yield from self.out.named_weights("attn.proj")
        yield "attn.rel_pos_h", self.row_distances.data
        yield "attn.rel_pos_w", self.column_distances.data
        yield from self.mlp.named_weights(norm="layer_norm2", linears=("mlp.lin1", "mlp.lin2"))


def _between(learned: Tensor, side: int) -> Tensor:
    """Returns what is learned for the distance of each place to each other: [side, side, head_dim]

    Args:
        learned: [distances, head_dim], of as many as the learned positions have; resized for other sides.
    """
    if len(learned) != 2 * side - 1:
        resized = functional.interpolate(learned.float().T[None], 2 * side - 1, mode="linear")
        learned = resized[0].T.to(learned.dtype)
    places = torch.arange(side, device=learned.device)
    return learned[places[:, None] - places + side - 1]


def _windows(hidden: Tensor, window: int) -> Tensor:
    """Cuts squares into windows, with zeros where the last ones are not full.

    [squares, side, side, width] → [windows, window, window, width]
    """
    missing = -hidden.shape[1] % window
    padded = functional.pad(hidden, (0, 0, 0, missing, 0, missing))
    split = padded.unflatten(2, (-1, window)).unflatten(1, (-1, window))
    return split.transpose(2, 3).flatten(0, 2)


def _without_windows(windows: Tensor, num_squares: int, side: int) -> Tensor:
    """Undoes `_windows`."""
    count = -(-side // windows.shape[1])
    split = windows.unflatten(0, (num_squares, count, count)).transpose(2, 3)
    return split.flatten(3, 4).flatten(1, 2)[:, :side, :side]
