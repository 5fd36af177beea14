"""The transformer of DeepSeek-OCR-2's encoder: Qwen2's layers, with as many learned queries behind the positions of an
image, which become its tokens in the order in which they are read (arXiv 2601.20552).

Numerics follow transformers' `DeepseekOcr2VisionEncoder` (models/deepseek_ocr2/modeling_deepseek_ocr2.py).
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from glimpse.engine.checkpoint.model_config.encoders import PageVisionConfig
from glimpse.engine.worker.layers.linear import Linear, empty_parameter
from glimpse.engine.worker.layers.mlp import GatedMLP
from glimpse.engine.worker.layers.norm import RMSNorm
from glimpse.engine.worker.layers.ops import Ops
from glimpse.engine.worker.layers.quantized import prefixed, weights_of_layers
from glimpse.engine.worker.layers.rotary import Rotation, multimodal_rotation, rotate


class ReadingOrder(nn.Module):
    """Makes tokens of positions."""

    def __init__(self, config: PageVisionConfig) -> None:
        super().__init__()
        self.config = config
        self.of_tile, self.of_overview = (
            empty_parameter(side**2, config.width) for side in (config.tile_side, config.overview_side)
        )
        self.layers = nn.ModuleList(ReadingLayer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.width, eps=config.norm_eps)

    def forward(self, positions: Tensor, ops: Ops) -> Tensor:
        """[images, positions of a tile or an overview, width] → the same: tokens, normalized."""
        num_images, count = positions.shape[:2]
        queries = self.of_tile if count == len(self.of_tile) else self.of_overview
        hidden = torch.cat([positions, queries.expand(num_images, -1, -1)], dim=1)
        places = torch.arange(2 * count, device=hidden.device)
        rotation, sees = self._rotation(places.repeat(num_images)), _sees(places, count)
        rows = hidden.flatten(0, 1)
        for layer in self.layers:
            rows = layer(rows, ops, rotation, sees)
        return self.norm(rows.view(hidden.shape)[:, count:])

    def _rotation(self, places: Tensor) -> Rotation:
        head_dim = self.config.width // self.config.num_heads
        return multimodal_rotation(
            places.expand(3, -1), head_dim=head_dim, theta=self.config.rope_theta, section=(head_dim // 2, 0, 0)
        )

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names, without the encoder's prefix."""
        yield "query_768_resolution.weight", self.of_tile.data
        yield "query_1024_resolution.weight", self.of_overview.data
        yield from weights_of_layers("vision_encoder.layers.", self.layers)
        yield "vision_encoder.norm.weight", self.norm.weight.data


class ReadingLayer(nn.Module):
    """Attention and feed-forward, each preceded by an RMSNorm."""

    def __init__(self, config: PageVisionConfig) -> None:
        super().__init__()
        width, heads, kv_heads = config.width, config.num_heads, config.num_kv_heads
        self.heads = (heads, kv_heads, kv_heads)
        self.input_layernorm = RMSNorm(width, eps=config.norm_eps)
        self.qkv = Linear(width, tuple(count * width // heads for count in self.heads), bias=True)
        self.out = Linear(width, width, bias=False)
        self.post_attention_layernorm = RMSNorm(width, eps=config.norm_eps)
        self.mlp = GatedMLP(width, config.intermediate_size)

    def forward(self, rows: Tensor, ops: Ops, rotation: Rotation, sees: Tensor) -> Tensor:
        """Computes rows of equally many places of each image, [images · places, width].

        Args:
            sees: bool [places, places]: which places each attends to.
        """
        qkv = ops.norm_linear(rows, self.input_layernorm, self.qkv).unflatten(-1, (sum(self.heads), -1))
        heads, kv_heads, _ = self.heads
        rotated = rotate(qkv[:, : heads + kv_heads], rotation)
        parts = (rotated[:, :heads], rotated[:, heads:], qkv[:, heads + kv_heads :])
        query, key, value = (part.unflatten(0, (-1, len(sees))).transpose(1, 2) for part in parts)
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=sees, enable_gqa=True)
        rows = ops.linear_add(attended.transpose(1, 2).reshape(rows.shape), self.out, rows)
        return ops.norm_mlp_add(rows, self.post_attention_layernorm, self.mlp)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names, without the layer's prefix."""
        yield "input_layernorm.weight", self.input_layernorm.weight.data
        yield from self.qkv.named_weights("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        yield from self.out.named_weights("self_attn.o_proj")
        yield "post_attention_layernorm.weight", self.post_attention_layernorm.weight.data
        yield from prefixed("mlp.", self.mlp.named_weights())


def _sees(places: Tensor, count: int) -> Tensor:
    """Returns which places each attends to: positions to each other, queries to positions and earlier queries."""
    return (places <= places[:, None]) | ((places < count) & (places[:, None] < count))
