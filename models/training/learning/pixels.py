"""The basis of the patch embedding: spatial frequencies of a patch, per opponent colour.

A discrete cosine transform whose frequencies are weighted by their height, because natural edges weaken high ones.
Fixed; folded into the weights on export.
"""

import math

import torch
from torch import Tensor

SIDE = 14
"""Pixels of a patch's side."""
PATCH_VALUES = 3 * SIDE * SIDE
"""Values of one frame of a patch: channels, rows, columns."""

LUMA_FREQUENCIES = 12
"""Frequencies per side kept for lightness; letters need high ones."""
CHROMA_FREQUENCIES = 6
"""Likewise of the two differences between colours."""
NUM_FEATURES = LUMA_FREQUENCIES**2 + 2 * CHROMA_FREQUENCIES**2

_OPPONENT = ((1 / 3, 1 / 3, 1 / 3), (0.5, -0.5, 0.0), (0.25, 0.25, -0.5))
"""Lightness, red against green, yellow against blue; rows over red, green, blue."""


def spatial_features() -> Tensor:
    """float32 [NUM_FEATURES, PATCH_VALUES]"""
    kept = (LUMA_FREQUENCIES, CHROMA_FREQUENCIES, CHROMA_FREQUENCIES)
    parts = [
        torch.einsum("c,fp->fcp", torch.tensor(colour), _plane_waves(count)).flatten(1)
        for colour, count in zip(_OPPONENT, kept, strict=True)
    ]
    return torch.cat(parts)


def _plane_waves(count: int) -> Tensor:
    """float32 [count², SIDE²]: products of a row's wave and a column's."""
    places = (torch.arange(SIDE) + 0.5) * math.pi / SIDE
    frequencies = torch.arange(count, dtype=torch.float32)
    waves = torch.cos(frequencies[:, None] * places) * math.sqrt(2 / SIDE)
    waves[0] /= math.sqrt(2)
    heights = (frequencies[:, None] ** 2 + frequencies**2).sqrt()
    weights = (1 + heights) / math.sqrt(SIDE)
    return torch.einsum("ur,vc,uv->uvrc", waves, waves, weights).reshape(count**2, SIDE**2)
