"""Linears with unsigned 4- or 8-bit integer weights, and a scale and a zero point or minimum for each group of inputs.

All checkpoint formats are converted to one memory layout, which the kernels read:

- `weight`, uint8 [out, in · bits / 8], contiguous: one row per output feature. With 8 bits, one byte per input. With 4
  bits, 16 bytes store 32 inputs: byte j stores input j in its low nibble and input j + 16 in its high nibble, so the
  low nibbles of a vector of bytes, and the high ones, are vectors of consecutive inputs.
- `scale`, float32, float16 or bfloat16 [groups, out]. Group g consists of the inputs from g · group_size on; group_size
  is a multiple of 32, or 16 with 8 bits, and divides `in`, a multiple of 32.
- `zero`, [groups, out]: a zero point, uint8, which is a number of scales, or a minimum, in the scale's type. What is
  subtracted, `minima`, is zero · scale of zero points, and a minimum itself.
- The weight of input i is values[out, i] · scale[i // group_size, out] - minima[i // group_size, out].
- `input_order`, int64 [in] or None: input i above is x[…, input_order[i]]. Set for checkpoints whose groups are not
  consecutive inputs.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from glimpse.engine.checkpoint.quantization import PACKED_INPUTS
from glimpse.engine.errors import CheckpointError
from glimpse.engine.worker.layers.linear import Linear, by_rows, stacked

HALF = PACKED_INPUTS // 2
SHRINKS = (0.95, 0.9, 0.85, 0.8, 0.75)
"""Factors of a group's range that are tried besides 1."""
MIN_BITS_WITHOUT_LOSS = 8
"""Bits from which a smaller range gains next to nothing."""


class GroupQuantizedLinear(nn.Module):
    """A `Linear` with weights in this module's layout."""

    def __init__(
        self,
        linear: Linear,
        *,
        bits: int,
        group_size: int,
        scale_dtype: torch.dtype,
        has_minimum: bool = False,
        desc_act: bool = False,
        byte_inputs: bool = False,
    ) -> None:
        """Takes the sizes and the bias of a linear; weights are uninitialized until they are loaded.

        Args:
            bits: bits per weight, 4 or 8.
            group_size: inputs that share a scale; must divide the number of inputs.
            has_minimum: whether groups have a minimum rather than a zero point.
            desc_act: whether the checkpoint assigns inputs to groups; see `sort_inputs`.
            byte_inputs: whether native kernels round activations to 8 bits, as they do for weights of 4, rather than to
                15; groups are multiples of 32 inputs then.
        """
        super().__init__()
        rows, inputs = linear.weight.shape
        empty, self.dtype = linear.weight.new_empty, linear.weight.dtype
        self.sizes, self.bits, self.group_size, self.in_features = linear.sizes, bits, group_size, inputs
        self.byte_inputs = byte_inputs
        groups = inputs // group_size
        self.weight = nn.Parameter(empty(rows, inputs * bits // 8, dtype=torch.uint8), requires_grad=False)
        self.scale = nn.Parameter(empty(groups, rows, dtype=scale_dtype), requires_grad=False)
        zero_dtype = scale_dtype if has_minimum else torch.uint8
        self.zero = nn.Parameter(empty(groups, rows, dtype=zero_dtype), requires_grad=False)
        self.bias = linear.bias
        self.group_index: nn.Parameter | None = None
        """int32 [stacked matrices, in]: group of each input, until `sort_inputs`."""
        if desc_act:
            self.group_index = nn.Parameter(empty(len(self.sizes), inputs, dtype=torch.int32), requires_grad=False)
        self.input_order: nn.Parameter | None = None

    @property
    def minima(self) -> Tensor:
        """float32 [groups, out]: what is subtracted from the scaled values."""
        return _minima(self.zero, self.scale)

    def forward(self, x: Tensor) -> Tensor:
        """[…, in] → […, out]"""
        if self.input_order is not None:
            x = x.index_select(-1, self.input_order)
        return functional.linear(x, self._sorted_weight(x.dtype), self.bias)

    def rows(self, indices: Tensor) -> Tensor:
        """Returns rows of W, [indices, in], in the dtype of unquantized weights; see `Linear.rows`."""
        return self._sorted_weight(self.dtype, indices)

    def dequantized(self, dtype: torch.dtype) -> Linear:
        """Returns the equivalent unquantized linear, with weights rounded to `dtype`."""
        weight = self._sorted_weight(dtype)
        if self.input_order is not None:
            weight = torch.empty_like(weight).index_copy_(1, self.input_order, weight)
        linear = Linear(weight.shape[1], self.sizes, bias=False)
        linear.weight = nn.Parameter(weight, requires_grad=False)
        linear.bias = self.bias
        return linear

    def named_weights(self, *names: str) -> Iterator[tuple[str, Tensor]]:
        """Does what `Linear.named_weights` does, with the tensors of this module's layout for each matrix.

        Two-dimensional tensors are views with the output features first.
        """
        for index, (name, rows) in enumerate(stacked(names, self.sizes)):
            yield f"{name}.weight", self.weight.data[rows]
            yield f"{name}.scale", self.scale.data.T[rows]
            yield f"{name}.zero", self.zero.data.T[rows]
            if self.group_index is not None:
                yield f"{name}.group_index", self.group_index.data[index]
            if self.bias is not None:
                yield f"{name}.bias", self.bias.data[rows]

    def sort_inputs(self) -> None:
        """Permutes the inputs so that groups are consecutive. To be called once everything is loaded.

        Raises:
            CheckpointError: groups differ in size, or stacked matrices have different groups.
        """
        if self.group_index is None:
            return
        index, self.group_index = self.group_index.data, None
        if not torch.equal(index, index[:1].expand_as(index)):
            raise CheckpointError(
                "g_idx: expected equal groups in all matrices with the same input, got different ones"
            )
        groups, order = index[0].sort(stable=True)
        inputs = torch.arange(len(order), device=order.device)
        if not torch.equal(groups, (inputs // self.group_size).to(groups.dtype)):
            raise CheckpointError(f"g_idx: expected {self.group_size} inputs in each group, got different sizes")
        if not torch.equal(order, inputs):
            self.weight.data.copy_(pack_values(unpack_values(self.weight, self.bits)[:, order], self.bits))
            self.input_order = nn.Parameter(order, requires_grad=False)

    def _sorted_weight(self, dtype: torch.dtype, rows: Tensor | slice = slice(None)) -> Tensor:
        """[out, in], with the inputs in stored order."""
        values = unpack_values(self.weight[rows], self.bits).unflatten(1, (-1, self.group_size))
        scale, zero = self.scale.T[rows].float(), self.zero.T[rows]
        weight = values.float().mul_(scale[:, :, None]).sub_(_minima(zero, scale)[:, :, None])
        return weight.flatten(1).to(dtype)  # rounded once


def _minima(zero: Tensor, scale: Tensor) -> Tensor:
    return zero.float() if zero.is_floating_point() else zero.float().mul_(scale.float())


def quantize_groups(weight: Tensor, *, bits: int, group_size: int, scale_dtype: torch.dtype) -> Mapping[str, Tensor]:
    """Quantizes to the nearest values of the range of each group that loses the least.

    A group's range goes from its minimum to its maximum, including zero, or is smaller by one of `SHRINKS`: clipping a
    few large weights can cost less than coarser steps for all others. The loss is the sum of squared errors.

    Args:
        weight: [out, in]
        group_size: inputs that share a scale.

    Returns:
        `weight` in this module's layout, `scale` and `zero` [out, groups].
    """

    def quantize(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        grouped = rows.unflatten(1, (-1, group_size))  # [rows, groups, group_size]
        shrinks = SHRINKS if bits < MIN_BITS_WITHOUT_LOSS else ()
        values, scale, zero = fit_groups(grouped, bits=bits, scale_dtype=scale_dtype, shrinks=shrinks)
        return pack_values(values.flatten(1), bits), scale, zero

    packed, scale, zero = by_rows(weight, quantize)
    return {"weight": packed, "scale": scale, "zero": zero}


def fit_groups(
    grouped: Tensor,
    *,
    bits: int,
    scale_dtype: torch.dtype,
    shrinks: Sequence[float] = (),
    importance: Tensor | None = None,
    is_symmetric: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Rounds each group to the nearest values of its range, or of a smaller one if that loses less.

    Args:
        grouped: float32 [rows, groups, group_size]
        shrinks: factors of the range that are tried besides 1.
        importance: what squared errors are multiplied by, [groups, group_size]; None: 1.
        is_symmetric: zero points are all 2**(bits - 1), in the middle of the range.

    Returns:
        The values, uint8 [rows, groups, group_size]; the scales and the zero points, uint8, [rows, groups].
    """
    low, high = grouped.amin(dim=-1).clamp_(max=0), grouped.amax(dim=-1).clamp_(min=0)
    middle = 2 ** (bits - 1)
    if is_symmetric:
        high = torch.maximum(high, -low)
        low = -high * (middle / (middle - 1))
    fit = partial(
        _round_groups,
        grouped,
        bits=bits,
        scale_dtype=scale_dtype,
        importance=importance,
        zero_point=middle if is_symmetric else None,
    )
    values, scale, zero, loss = fit(low, high)
    for shrink in shrinks:
        other = fit(low * shrink, high * shrink)
        is_better = other[3] < loss
        values = torch.where(is_better[..., None], other[0], values)
        scale, zero, loss = (
            torch.where(is_better, new, old) for new, old in zip(other[1:], (scale, zero, loss), strict=True)
        )
    return values.to(torch.uint8), scale, zero.to(torch.uint8)


def _round_groups(
    grouped: Tensor,
    low: Tensor,
    high: Tensor,
    *,
    bits: int,
    scale_dtype: torch.dtype,
    importance: Tensor | None,
    zero_point: int | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rounds groups to the values of a range; see `fit_groups`.

    Args:
        low: the range's lowest weight, at most 0, [rows, groups].
        high: likewise the highest, at least 0.
        zero_point: that of all groups; None: the nearest to the range's.

    Returns:
        The values [rows, groups, group_size]; the scales, zeros and sums of squared errors, [rows, groups].
    """
    top = 2**bits - 1
    scale = ((high - low) / top).to(scale_dtype)
    divisor = torch.where(scale > 0, scale, 1.0).float()
    zero = (-low / divisor).round_().clamp_(0, top)
    if zero_point is not None:
        zero.fill_(zero_point)
    values = grouped.div(divisor[..., None]).round_().add_(zero[..., None]).clamp_(0, top)
    errors = (values - zero[..., None]).mul_(scale.float()[..., None]).sub_(grouped).square_()
    return values, scale, zero, (errors if importance is None else errors.mul_(importance)).sum(dim=-1)


def pack_values(values: Tensor, bits: int) -> Tensor:
    """Packs uint8 [out, in], each below 2**bits, to uint8 [out, in · bits / 8] in this module's layout."""
    if bits == 8:
        return values
    low, high = values.unflatten(1, (-1, 2, HALF)).unbind(2)  # [out, in / 32, 16] each
    return (low | (high << 4)).flatten(1)


def unpack_values(packed: Tensor, bits: int) -> Tensor:
    """Reverses `pack_values`."""
    if bits == 8:
        return packed
    halves = packed.unflatten(1, (-1, HALF))  # [out, in / 32, 16]
    return torch.cat([halves & 15, halves >> 4], dim=-1).flatten(1)
