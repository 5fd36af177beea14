"""InternViT (arXiv 2312.14238): a vision transformer for images of one fixed size, from uint8 pixels to the features of
patches.

It differs from `VisionTransformer`, for CLIP and SigLIP, in that each layer weights its additions to the hidden states
(LayerScale, arXiv 2103.17239). Numerics follow transformers' `InternVLVisionModel`
(models/internvl/modeling_internvl.py).
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from glimpse.engine.checkpoint.model_config.encoders import InternVisionConfig
from glimpse.engine.worker.layers.linear import Linear, empty_parameter
from glimpse.engine.worker.layers.norm import RMSNorm
from glimpse.engine.worker.layers.ops import Norm, Ops
from glimpse.engine.worker.layers.pixels import PixelStatistics
from glimpse.engine.worker.layers.quantized import named_tensors, weights_of_layers
from glimpse.engine.worker.models.encoders.gelu_mlp import GeluMLP
from glimpse.engine.worker.models.encoders.vit import SquareVit


class InternVit(SquareVit):
    """The transformer of InternVL."""

    def __init__(self, config: InternVisionConfig, statistics: PixelStatistics) -> None:
        super().__init__(config, statistics, (InternVitLayer(config) for _ in range(config.num_layers)))

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names; matrices of fused linears are views."""
        embeddings = self.embedding_weights("patch_embeddings.projection", "cls_token", "position_embeddings")
        for name, tensor in embeddings:
            own = tensor if name.startswith("patch") else tensor.view(1, -1, self.config.width)
            yield f"vision_tower.embeddings.{name}", own
        yield from weights_of_layers("vision_tower.encoder.layer.", self.layers)

    def is_unused(self, _name: str) -> bool:
        """See `VisionTransformer.is_unused`: the output depends on every tensor."""
        return False


class InternVitLayer(nn.Module):
    """Bidirectional attention and feed-forward, each preceded by a norm and weighted."""

    def __init__(self, config: InternVisionConfig) -> None:
        super().__init__()
        width = config.width
        self.num_heads = config.num_heads
        self.norm_before = _norm(config)
        self.qkv_proj = Linear(width, (width, width, width), bias=config.qkv_bias)
        # Over all heads together, unlike the decoder's.
        self.query_norm = RMSNorm(width, eps=QUERY_KEY_EPS) if config.query_key_norms else None
        self.key_norm = RMSNorm(width, eps=QUERY_KEY_EPS) if config.query_key_norms else None
        self.out_proj = Linear(width, width, bias=True)
        self.attention_scale = empty_parameter(width)
        self.mlp = GeluMLP(width, config.intermediate_size, width, norm=_norm(config))
        self.mlp_scale = empty_parameter(width)

    def forward(self, hidden: Tensor, ops: Ops, num_tiles: int) -> Tensor:
        """[tiles · positions, width] → the same; each position attends to those of its tile."""
        qkv = self._normalized(ops.norm_linear(hidden, self.norm_before, self.qkv_proj).unflatten(-1, (3, -1)))
        attended = ops.attend_segments(qkv.unflatten(-1, (self.num_heads, -1)), None, num_tiles)
        hidden = hidden + self.attention_scale * ops.linear_add(attended.flatten(1), self.out_proj, None)
        return hidden + self.mlp_scale * self.mlp(hidden, ops)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names, without the layer's prefix."""
        yield from self.qkv_proj.named_weights("attention.q_proj", "attention.k_proj", "attention.v_proj")
        if self.query_norm is not None and self.key_norm is not None:
            yield "attention.q_norm.weight", self.query_norm.weight.data
            yield "attention.k_norm.weight", self.key_norm.weight.data
        yield from self.out_proj.named_weights("attention.projection_layer")
        yield from self.mlp.named_weights(norm="layernorm_after", linears=("mlp.fc1", "mlp.fc2"))
        yield from named_tensors(self.norm_before, "layernorm_before")
        yield "lambda_1", self.attention_scale.data
        yield "lambda_2", self.mlp_scale.data

    def _normalized(self, qkv: Tensor) -> Tensor:
        """[positions, 3 (query, key, value), width] → the same"""
        if self.query_norm is None or self.key_norm is None:
            return qkv
        query, key, value = qkv.unbind(1)
        return torch.stack([self.query_norm(query), self.key_norm(key), value], dim=1)


QUERY_KEY_EPS = 1e-6


def _norm(config: InternVisionConfig) -> Norm:
    if config.rms_norm:
        return RMSNorm(config.width, eps=config.norm_eps)
    return nn.LayerNorm(config.width, eps=config.norm_eps)
