"""Rotary position embedding (arXiv 2104.09864).

Angles are computed once per step in float32 and shared by all layers.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from glimpse.engine.checkpoint.model_config.decoder import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    ProportionalScaling,
    RopeScaling,
    YarnScaling,
)


class Rotation(NamedTuple):
    """Cosine and sine of each token's rotation angles. Broadcasts over heads."""

    cos: Tensor
    """float32 [tokens, 1, head_dim / 2]"""
    sin: Tensor
    """float32 [tokens, 1, head_dim / 2]"""


def multimodal_rotation(
    positions: Tensor,
    *,
    head_dim: int,
    theta: float,
    section: Sequence[int],
    interleaved: bool = False,
    rotary_dim: int | None = None,
    scaling: RopeScaling | None = None,
) -> Rotation:
    """Returns the rotation of a decoder with M-RoPE (arXiv 2409.12191), or of one with positions on one axis.

    Args:
        positions: int64 [3, tokens]: time, height, width.
        theta: base of the wavelengths.
        section: how many of the head_dim / 2 frequencies use time, height and width.
        rotary_dim: dimensions per head that rotate, those of the first frequencies; None: all.
        scaling: how frequencies are scaled to a longer context window.
    """
    axes = _axis_index(rotary_axes(tuple(section), interleaved=interleaved), positions.device)
    places = positions.float().T.index_select(1, axes)  # [tokens, head_dim / 2], contiguous
    rotary_dim = rotary_dim or head_dim
    frequencies = inverse_wavelengths(rotary_dim, theta, positions.device, scaling)
    rotation = _rotation(places[:, : rotary_dim // 2] * frequencies)
    if isinstance(scaling, LongRopeScaling | YarnScaling):
        rotation = Rotation(rotation.cos * scaling.attention_factor, rotation.sin * scaling.attention_factor)
    return rotation if rotary_dim == head_dim else _padded(rotation, (head_dim - rotary_dim) // 2)


@cache
def rotary_axes(section: tuple[int, ...], *, interleaved: bool) -> tuple[int, ...]:
    """Returns the axis of the positions that each frequency uses: 0 for time, 1 for height, 2 for width.

    Args:
        section: how many frequencies use each axis.
        interleaved: height and width use every third frequency from the second and third on, as in Qwen3-VL
            (transformers, models/qwen3_vl/modeling_qwen3_vl.py), and time the others. False: consecutive ones.
    """
    if not interleaved:
        return tuple(axis for axis, count in enumerate(section) for _ in range(count))
    return tuple(index % 3 if index < 3 * section[index % 3] else 0 for index in range(sum(section)))


def planar_rotation(
    positions: Tensor, *, head_dim: int, theta: float = 10_000.0, alternating: bool = False
) -> Rotation:
    """Returns the rotation of a vision encoder: half of the frequencies use the row, half the column.

    Args:
        positions: int64 [patches, 2]: row, column.
        theta: base of the wavelengths.
        alternating: rows and columns have frequencies of their own, as in Pixtral: every second one of a head. False:
            they have the same ones, as in Qwen2-VL.
    """
    if alternating:
        frequencies = inverse_wavelengths(head_dim, theta, positions.device).unflatten(0, (-1, 2)).T
    else:
        frequencies = inverse_wavelengths(head_dim // 2, theta, positions.device)
    angles = positions.float()[..., None] * frequencies
    return _rotation(angles.flatten(1))  # [patches, 2, head_dim / 4] → [patches, head_dim / 2]


@cache
def inverse_wavelengths(dim: int, theta: float, device: torch.device, scaling: RopeScaling | None = None) -> Tensor:
    """float32 [dim / 2]: theta^(-2i / dim), scaled. Made once, since every step needs it; not to be written to."""
    wavelengths = theta ** (torch.arange(0, dim, 2, dtype=torch.float32, device=device) / dim)
    frequencies = 1.0 / wavelengths
    match scaling:
        case None:
            return frequencies
        case LinearScaling(factor=factor):
            return frequencies / factor
        case ProportionalScaling(share=share, factor=factor):
            turns = torch.arange(len(frequencies), device=device) < int(share * dim // 2)
            return turns * frequencies / factor
        case Llama3Scaling():
            return _llama3_frequencies(frequencies, scaling)
        case LongRopeScaling(factors=factors):
            return 1.0 / (torch.tensor(factors, device=device) * wavelengths)  # rounded as transformers does
        case YarnScaling():
            places = torch.arange(dim // 2, dtype=torch.float32, device=device)
            stretched = ((places - scaling.kept) / (scaling.stretched - scaling.kept)).clamp(0, 1)
            return stretched / (scaling.factor * wavelengths) + (1 - stretched) * frequencies


@cache
def _axis_index(axes: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(axes, device=device)


def _llama3_frequencies(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Scales frequencies like transformers' `_compute_llama3_parameters` (modeling_rope_utils.py)."""
    turns = scaling.original_context * frequencies / (2 * math.pi)  # within the original context window
    share = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = share.clamp(0, 1)  # of the frequency; the rest is stretched
    return kept * frequencies + (1 - kept) * frequencies / scaling.factor


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotates the pairs (x[i], x[i + head_dim / 2]) of [tokens, heads, head_dim]."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = rotation
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


def _padded(rotation: Rotation, num_pairs: int) -> Rotation:
    """Returns the rotation with this many more pairs of dimensions, which stay as they are."""
    cos, sin = (functional.pad(each, (0, num_pairs), value=value) for each, value in zip(rotation, (1, 0), strict=True))
    return Rotation(cos, sin)


def _rotation(angles: Tensor) -> Rotation:
    return Rotation(angles.cos()[:, None], angles.sin()[:, None])
