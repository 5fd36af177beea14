"""RMSNorm over the last dimension, computed in float32 for any activation dtype."""

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """x / rms(x) · weight (arXiv 1910.07467)."""

    def __init__(self, width: int, *, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """[…, width] → […, width]"""
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return (wide * scale).to(x.dtype) * self.weight
