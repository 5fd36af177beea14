"""Feed-forward blocks of the decoder and of encoders."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from glimpse.engine.layers.linear import Linear


class GatedMLP(nn.Module):
    """down(silu(gate(x)) · up(x)) (arXiv 2002.05202), with gate and up in one product."""

    def __init__(self, width: int, intermediate_size: int, *, bias: bool = False) -> None:
        super().__init__()
        self.gate_up_proj = Linear(width, (intermediate_size, intermediate_size), bias=bias)
        self.down_proj = Linear(intermediate_size, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, width] → [tokens, width]"""
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(functional.silu(gate) * up)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the weights with their checkpoint names, without the module's prefix."""
        yield from self.gate_up_proj.named_weights("gate_proj", "up_proj")
        yield from self.down_proj.named_weights("down_proj")


class QuickGeluMLP(nn.Module):
    """fc2(quick_gelu(fc1(x))) with quick_gelu(y) = y · sigmoid(1.702 y) (arXiv 1606.08415, section 2)."""

    def __init__(self, width: int, intermediate_size: int) -> None:
        super().__init__()
        self.fc1 = Linear(width, intermediate_size, bias=True)
        self.fc2 = Linear(intermediate_size, width, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        """[patches, width] → [patches, width]"""
        inner = self.fc1(x)
        return self.fc2(inner * torch.sigmoid(1.702 * inner))

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """As `GatedMLP.named_weights`."""
        yield from self.fc1.named_weights("fc1")
        yield from self.fc2.named_weights("fc2")
