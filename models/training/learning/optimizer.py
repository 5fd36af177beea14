"""The optimizer: Muon for hidden matrices, AdamW for embeddings, heads, norms and biases.

Muon (Jordan et al., 2024) orthogonalises a matrix's momentum by five steps of the Newton-Schulz iteration with its
authors' coefficients.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_NUM_ITERATIONS = 5
_ADAMW_KINDS = ("embed_tokens.weight", "heads.read.weight")
_STACKED = {"attn.qkv.weight": 3, "merger.mlp.0.weight": 4}
"""Matrices treated as several stacked ones; the merger's for speed, because the iteration is cubic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Learning rate, before the schedule's factor."""

    muon: float = 0.006
    adamw: float = 0.001
    momentum: float = 0.95
    betas: tuple[float, float] = (0.9, 0.98)
    decay: float = 0.01
    """Weight decay per unit of the rate; matrices only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One parameter with its gradients and moments. All tensors are flat views of shared memory."""

    name: str
    shape: tuple[int, ...]
    weight: Tensor
    """float32 [values]"""
    gradients: Tensor
    """float32 [workers, values]"""
    first: Tensor
    """float32 [values]: the mean of gradients."""
    second: Tensor
    """float32 [values]: the mean of their squares; unused by Muon."""

    @property
    def by_muon(self) -> bool:
        return len(self.shape) == 2 and self.name not in _ADAMW_KINDS


@torch.no_grad()
def update(
    slots: Sequence[Slot], rates: Rates, factor: float, num_updates: int, *, dtype: torch.dtype = torch.bfloat16
) -> None:
    """Updates parameters with the mean of the workers' gradients.

    Args:
        slots: the parameters.
        rates: of learning.
        factor: of the schedule, 0 … 1.
        num_updates: earlier updates of these parameters.
        dtype: of Muon's products. bfloat16 is slow on processors without instructions for it.
    """
    for slot in slots:
        gradient = slot.gradients[0] if len(slot.gradients) == 1 else slot.gradients.mean(dim=0)
        if slot.by_muon:
            _muon(slot, gradient, rates, factor, dtype)
        else:
            _adamw(slot, gradient, rates, factor, num_updates)


def orthogonalise(matrices: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Brings all singular values near 1: float32 [matrices, rows, columns] → the same."""
    a, b, c = _COEFFICIENTS
    x = matrices.to(dtype)
    tall = x.shape[1] > x.shape[2]
    x = x.transpose(1, 2) if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(_NUM_ITERATIONS):
        square = x @ x.transpose(1, 2)
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return (x.transpose(1, 2) if tall else x).float()


def _muon(slot: Slot, gradient: Tensor, rates: Rates, factor: float, dtype: torch.dtype) -> None:
    slot.first.lerp_(gradient, 1 - rates.momentum)
    ahead = gradient.lerp(slot.first, rates.momentum)
    num_matrices = next((count for suffix, count in _STACKED.items() if slot.name.endswith(suffix)), 1)
    matrices = ahead.view(num_matrices, slot.shape[0] // num_matrices, slot.shape[1])
    rate = rates.muon * factor
    slot.weight.mul_(1 - rate * rates.decay)
    step = rate * math.sqrt(max(1.0, matrices.shape[1] / matrices.shape[2]))
    slot.weight.sub_(orthogonalise(matrices, dtype).flatten(), alpha=step)


def _adamw(slot: Slot, gradient: Tensor, rates: Rates, factor: float, num_updates: int) -> None:
    beta, beta_squares = rates.betas
    slot.first.lerp_(gradient, 1 - beta)
    slot.second.lerp_(gradient.square(), 1 - beta_squares)
    mean = slot.first / (1 - beta ** (num_updates + 1))
    size = (slot.second / (1 - beta_squares ** (num_updates + 1))).sqrt_().add_(1e-8)
    slot.weight.sub_(mean / size, alpha=rates.adamw * factor)
