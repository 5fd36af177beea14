"""Rounds matrices to integers in groups so that the outputs of their layer change little.

The error of a matrix W that becomes Q is E[‖(W - Q) x‖²] over the layer's inputs x. With their second moments,
H = E[x xᵀ], it is the trace of (W - Q) H (W - Q)ᵀ, a sum over rows, which are rounded independently. Groups' ranges are
searched with H's diagonal alone; then columns are rounded in turn, and what one loses is made up for in those that
follow (GPTQ, arXiv 2210.17323).
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from glimpse.engine.worker.layers.group_quantized import MIN_BITS_WITHOUT_LOSS, fit_groups
from glimpse.engine.worker.layers.linear import by_rows

Method: TypeAlias = Literal["nearest", "searched", "compensated"]
"""Round to the nearest value of each group's range; of the range that is searched; or of that, making up for what
earlier columns lost."""

SHRINKS = tuple(1 - step / 40 for step in range(1, 17))
"""Factors of a group's range that are tried besides 1."""
DAMPING = 0.01
"""Part of the mean of H's diagonal that is added to it: inputs that the text does not have may come."""
_BLOCK = 128
"""Columns after which the others are updated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounded:
    """Integers with a scale and a zero point for each output feature and group."""

    values: Tensor
    """uint8 [out, in]"""
    scale: Tensor
    """[out, groups]"""
    zero: Tensor
    """uint8 [out, groups]"""

    def rows(self, rows: slice) -> "Rounded":
        """Returns those of some output features."""
        return Rounded(values=self.values[rows], scale=self.scale[rows], zero=self.zero[rows])

    @property
    def weight(self) -> Tensor:
        """float32 [out, in]: what the integers stand for."""
        grouped = self.values.unflatten(1, (self.scale.shape[1], -1)).float()
        return grouped.sub_(self.zero.float()[..., None]).mul_(self.scale.float()[..., None]).flatten(1)


def round_matrix(
    weight: Tensor, moments: Tensor, *, bits: int, group_size: int, scale_dtype: torch.dtype, method: Method
) -> Rounded:
    """Rounds a matrix. With 8 bits, zero points are in the middle, as other engines' kernels expect them.

    Args:
        weight: [out, in]
        moments: float32 [in, in]: second moments of the inputs.
    """
    is_searched = method != "nearest" and bits < MIN_BITS_WITHOUT_LOSS
    importance = moments.diagonal().unflatten(0, (-1, group_size)) if is_searched else None  # [groups, group_size]

    def fit(rows: Tensor) -> tuple[Tensor, ...]:
        grouped = rows.unflatten(1, (-1, group_size))
        return fit_groups(
            grouped,
            bits=bits,
            scale_dtype=scale_dtype,
            shrinks=SHRINKS if is_searched else (),
            importance=importance,
            is_symmetric=bits >= MIN_BITS_WITHOUT_LOSS,
        )

    values, scale, zero = by_rows(weight, fit)
    if method == "compensated":
        minima = zero.float() * scale.float()
        values = compensate(weight.float(), Factor.of(moments), scale.float(), minima, 2**bits - 1)
    return Rounded(values=values.flatten(1), scale=scale, zero=zero)


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """What makes up for the error of a column in those that follow it."""

    order: Tensor
    """int64 [in]: the columns, the most important first."""
    matrix: Tensor
    """U, upper triangular, with UᵀU = H⁻¹: float32 [in, in], the inputs in that order."""

    @classmethod
    def of(cls, moments: Tensor) -> "Factor":
        """Returns that of inputs whose second moments are float32 [in, in]."""
        order = moments.diagonal().argsort(descending=True)
        return cls(order=order, matrix=_inverse_factor(moments, order))


def compensate(weight: Tensor, factor: Factor, scale: Tensor, minima: Tensor, top: int) -> Tensor:
    """Rounds columns in turn to values from 0 to `top`, which stand for value · scale - minimum.

    Args:
        weight: float32 [out, in]
        scale: float32 [out, groups], of equally many consecutive inputs each; minima likewise.

    Returns:
        uint8 [out, in]
    """
    order, matrix = factor.order, factor.matrix
    groups = order // (weight.shape[1] // scale.shape[1])
    rest, values = weight[:, order], torch.empty_like(weight, dtype=torch.uint8)
    for first in range(0, len(order), _BLOCK):
        block = slice(first, min(first + _BLOCK, len(order)))
        columns, errors = rest[:, block].clone(), torch.empty_like(rest[:, block])
        for index in range(columns.shape[1]):
            place = first + index
            factors, lows = scale[:, groups[place]], minima[:, groups[place]]
            rounded = ((columns[:, index] + lows) / factors).nan_to_num_(0).round_().clamp_(0, top)
            values[:, order[place]] = rounded.to(torch.uint8)
            errors[:, index] = (columns[:, index] - (rounded * factors - lows)) / matrix[place, place]
            columns[:, index + 1 :].addr_(errors[:, index], matrix[place, place + 1 : block.stop], alpha=-1)
        rest[:, block.stop :] -= errors @ matrix[block, block.stop :]
    return values


def _inverse_factor(moments: Tensor, order: Tensor) -> Tensor:
    """Returns U, upper triangular, with UᵀU = H⁻¹: [in, in], the inputs in another order.

    More is added to the diagonal while H is singular. At most four matrices of this size are in memory.
    """
    damping = DAMPING * moments.diagonal().mean().clamp_(min=torch.finfo(torch.float32).tiny)
    while True:
        damped = moments[order[:, None], order]
        damped.diagonal().add_(damping)
        lower, info = torch.linalg.cholesky_ex(damped)
        del damped
        if not info:
            factor, info = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
            if not info:
                return factor
        damping *= 10
