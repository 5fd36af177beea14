"""The merger among the layers of MiniCPM-V 4.6's vision encoder: attention within each square of 2² patches, then one
row for each square.

Numerics follow transformers' `MiniCPMV4_6ViTWindowAttentionMerger` (models/minicpmv4_6/modeling_minicpmv4_6.py).
"""

from collections.abc import Iterator

from torch import Tensor, nn

from glimpse.engine.checkpoint.model_config.encoders import VitConfig
from glimpse.engine.worker.layers.linear import Linear
from glimpse.engine.worker.layers.ops import Ops
from glimpse.engine.worker.layers.quantized import named_tensors
from glimpse.engine.worker.models.encoders.gelu_mlp import GeluMLP
from glimpse.engine.worker.models.encoders.tiles import shuffle_pixels

SIDE = 2
"""Patches along each side of a square."""


class WindowMerger(nn.Module):
    """Merges squares of patches; the mean of a square's patches is added to what the products make of it."""

    def __init__(self, config: VitConfig) -> None:
        super().__init__()
        width, squared = config.width, SIDE**2
        self.num_heads = config.num_heads
        self.norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.qkv_proj = Linear(width, (width, width, width), bias=True)
        self.out_proj = Linear(width, width, bias=True)
        sizes = (squared * width, squared * config.intermediate_size, width)
        norm = nn.LayerNorm(squared * width, eps=config.norm_eps)
        self.mlp = GeluMLP(*sizes, norm=norm, approximate="tanh")

    def forward(self, hidden: Tensor, columns: int, ops: Ops) -> Tensor:
        """[images, rows · columns, width] → [images, rows / 2 · columns / 2, width]"""
        squares = shuffle_pixels(hidden, columns, SIDE)
        num_squares = squares.shape[0] * squares.shape[1]
        patches = squares.reshape(num_squares * SIDE**2, hidden.shape[-1])
        qkv = ops.norm_linear(patches, self.norm, self.qkv_proj).unflatten(-1, (3, self.num_heads, -1))
        attended = ops.attend_segments(qkv, None, num_squares)
        patches = ops.linear_add(attended.flatten(1), self.out_proj, patches).unflatten(0, (num_squares, -1))
        merged = self.mlp(patches.flatten(1), ops, patches.mean(1))
        return merged.unflatten(0, (len(hidden), -1))

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names, without the merger's prefix."""
        yield from named_tensors(self.norm, "layer_norm1")
        yield from self.qkv_proj.named_weights("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        yield from self.out_proj.named_weights("self_attn.out_proj")
        yield from self.mlp.named_weights(norm="pre_norm")
