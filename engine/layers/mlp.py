"""The feed-forward halves of decoder and vision blocks."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.layers.linear import Linear


class GatedMLP(nn.Module):
    """down(silu(gate(x)) · up(x)) (arXiv 2002.05202), gate and up in one product."""

    def __init__(self, width: int, inner_width: int) -> None:
        super().__init__()
        self.gate_up_proj = Linear(width, (inner_width, inner_width), bias=False)
        self.down_proj = Linear(inner_width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, width] → [tokens, width]"""
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(functional.silu(gate) * up)


class QuickGeluMLP(nn.Module):
    """fc2(quick_gelu(fc1(x))) with quick_gelu(y) = y · sigmoid(1.702 y) (arXiv 1606.08415, section 2)."""

    def __init__(self, width: int, inner_width: int) -> None:
        super().__init__()
        self.fc1 = Linear(width, inner_width, bias=True)
        self.fc2 = Linear(inner_width, width, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        """[patches, width] → [patches, width]"""
        inner = self.fc1(x)
        return self.fc2(inner * torch.sigmoid(1.702 * inner))
