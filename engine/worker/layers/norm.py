"""RMSNorm over the last dimension, of rows and of heads, computed in float32 for any activation dtype."""

import torch
from torch import Tensor, nn

from glimpse.engine.worker.layers.linear import empty_parameter


class RMSNorm(nn.Module):
    """x / rms(x) · weight (arXiv 1910.07467)."""

    def __init__(self, width: int, *, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = empty_parameter(width)

    def forward(self, x: Tensor) -> Tensor:
        """[…, width] → […, width]"""
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return (wide * scale).to(x.dtype) * self.weight


class HeadNorms(nn.Module):
    """Norms of each head of the queries and of the keys (query-key normalization, arXiv 2302.05442), and of values."""

    def __init__(self, head_dim: int, *, eps: float, keys: bool = True, values: bool = False) -> None:
        """
        Args:
            eps: Term that keeps the root from being zero.
            keys: Keys are normalized; False where a layer has none of its own.
        """
        super().__init__()
        self.query = RMSNorm(head_dim, eps=eps)
        self.key = RMSNorm(head_dim, eps=eps) if keys else None
        self.value = RMSNorm(head_dim, eps=eps) if values else None

    def normalize(self, qkv: Tensor, *, num_kv_heads: int) -> None:
        """Normalizes heads of [tokens, (heads + 2 · kv_heads) · head_dim] in place."""
        heads = qkv.unflatten(-1, (-1, len(self.query.weight)))
        num_heads = heads.shape[1] - 2 * num_kv_heads
        parts = heads.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
        for norm, part in zip((self.query, self.key, self.value), parts, strict=True):
            if norm is not None:
                part.copy_(norm(part))
