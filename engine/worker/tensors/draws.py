"""The parameters of random draws, as tensors."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawParams:
    """Which rows of logits a token is drawn from, their sampling parameters, and their random numbers."""

    rows: Tensor
    """int64 [draws]"""
    temperature: Tensor
    """float64 [draws], greater than 0."""
    top_k: Tensor
    """int64 [draws]; 0 keeps all tokens."""
    min_p: Tensor
    """float64 [draws]"""
    top_p: Tensor
    """float64 [draws]"""
    uniform: Tensor
    """float64 [draws], uniform in [0, 1)."""


DrawTokens = Callable[[Tensor, DrawParams, Tensor], None]
"""Draws tokens from logits, float32 [rows, vocab_size], and writes them to their rows of token ids, int64 [rows]."""
