"""Rotary position embedding (arXiv 2104.09864).

Angles are computed once per step in float32 and shared by all layers.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from glimpse.engine.model_config import LinearScaling, Llama3Scaling, RopeScaling


class Rotation(NamedTuple):
    """Cosine and sine of each token's rotation angles. Broadcasts over heads."""

    cos: Tensor
    """float32 [tokens, 1, head_dim / 2]"""
    sin: Tensor
    """float32 [tokens, 1, head_dim / 2]"""


def multimodal_rotation(
    positions: Tensor, *, head_dim: int, theta: float, section: Sequence[int], scaling: RopeScaling | None = None
) -> Rotation:
    """Returns the rotation of Qwen2-VL's decoder (M-RoPE, arXiv 2409.12191), or of one with positions on one axis.

    Args:
        positions: int64 [3, tokens]: time, height, width.
        head_dim: dimensions per head.
        theta: base of the wavelengths.
        section: how many of the head_dim / 2 frequencies, from the first on, use time, height and width.
        scaling: how frequencies are scaled to a longer context window.
    """
    angles = positions.float()[..., None] * inverse_wavelengths(head_dim, theta, positions.device, scaling)
    axes = angles.split(list(section), dim=-1)  # 3 times [3, tokens, section[axis]]
    return _rotation(torch.cat([axes[axis][axis] for axis in range(3)], dim=-1))


def planar_rotation(positions: Tensor, *, head_dim: int, theta: float = 10_000.0) -> Rotation:
    """Returns the rotation of Qwen2-VL's vision encoder: half of the frequencies use the row, half the column.

    Args:
        positions: int64 [patches, 2]: row, column.
        head_dim: dimensions per head.
        theta: base of the wavelengths.
    """
    angles = positions.float()[..., None] * inverse_wavelengths(head_dim // 2, theta, positions.device)
    return _rotation(angles.flatten(1))  # [patches, 2, head_dim / 4] → [patches, head_dim / 2]


@cache
def inverse_wavelengths(dim: int, theta: float, device: torch.device, scaling: RopeScaling | None = None) -> Tensor:
    """float32 [dim / 2]: theta^(-2i / dim), scaled. Made once, since every step needs it; not to be written to."""
    frequencies = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32, device=device) / dim)
    match scaling:
        case None:
            return frequencies
        case LinearScaling(factor=factor):
            return frequencies / factor
        case Llama3Scaling():
            return _llama3_frequencies(frequencies, scaling)


def _llama3_frequencies(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """As transformers' `_compute_llama3_parameters` (modeling_rope_utils.py)."""
    turns = scaling.original_context * frequencies / (2 * math.pi)  # within the original context window
    share = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = share.clamp(0, 1)  # of the frequency; the rest is stretched
    return kept * frequencies + (1 - kept) * frequencies / scaling.factor


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotates the pairs (x[i], x[i + head_dim / 2]) of [tokens, heads, head_dim]."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = rotation
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


def _rotation(angles: Tensor) -> Rotation:
    return Rotation(angles.cos()[:, None], angles.sin()[:, None])
