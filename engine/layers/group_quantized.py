"""Linears whose weights are whole numbers of 4 or 8 bits, with a scale and a zero point for each group of inputs.

They lie in memory in one way, whatever the checkpoint's form was, and this is the way for kernels to read:

- `weight`, uint8 [out, in · bits / 8], contiguous: what belongs to an output feature is in a row. With 8 bits a byte is
  an input. With 4, 16 bytes are 32 inputs: byte j of the 16 holds input j in its low half and input j + 16 in its high
  one, so that the low halves of a vector of bytes, and the high ones, are vectors of consecutive inputs.
- `scale`, float32, float16 or bfloat16 [groups, out]; `zero`, uint8 [groups, out]. Group g is the inputs from
  g · group_size on; group_size is a multiple of 32 and divides `in`.
- Input i weighs (steps[out, i] - zero[i // group_size, out]) · scale[i // group_size, out] in an output feature.
- `input_order`, int64 [in] or None: input i of all this is x[…, input_order[i]], for checkpoints whose groups are not
  made of neighbours.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from glimpse.engine.errors import CheckpointError
from glimpse.engine.layers.linear import Linear, by_rows, stacked
from glimpse.engine.quantization import PACKED_INPUTS

HALF = PACKED_INPUTS // 2


class GroupQuantizedLinear(nn.Module):
    """A `Linear` whose weights lie as this module says."""

    def __init__(
        self, linear: Linear, *, bits: int, group_size: int, scale_dtype: torch.dtype, reordered: bool = False
    ) -> None:
        """Of the sizes of a linear and with its bias; the weights are empty until they are loaded.

        Args:
            linear: whose place it takes.
            bits: of a weight, 4 or 8.
            group_size: inputs that share a scale; it divides the inputs.
            scale_dtype: of the scales.
            reordered: the checkpoint says which inputs form a group; see `sort_inputs`.
        """
        super().__init__()
        rows, inputs = linear.weight.shape
        empty = linear.weight.new_empty
        self.sizes, self.bits, self.group_size = linear.sizes, bits, group_size
        groups = inputs // group_size
        self.weight = nn.Parameter(empty(rows, inputs * bits // 8, dtype=torch.uint8), requires_grad=False)
        self.scale = nn.Parameter(empty(groups, rows, dtype=scale_dtype), requires_grad=False)
        self.zero = nn.Parameter(empty(groups, rows, dtype=torch.uint8), requires_grad=False)
        self.bias = linear.bias
        self.group_index: nn.Parameter | None = None
        """int32 [stacked matrices, in]: each input's group, until `sort_inputs`."""
        if reordered:
            self.group_index = nn.Parameter(empty(len(self.sizes), inputs, dtype=torch.int32), requires_grad=False)
        self.input_order: nn.Parameter | None = None

    def forward(self, x: Tensor) -> Tensor:
        """[…, in] → […, out]"""
        if self.input_order is not None:
            x = x.index_select(-1, self.input_order)
        return functional.linear(x, self._sorted_weight(x.dtype), self.bias)

    def dequantized(self, dtype: torch.dtype) -> Linear:
        """The linear that this one stands for: the same, but for rounding weights to `dtype`."""
        weight = self._sorted_weight(dtype)
        if self.input_order is not None:
            weight = torch.empty_like(weight).index_copy_(1, self.input_order, weight)
        linear = Linear(weight.shape[1], self.sizes, bias=False)
        linear.weight = nn.Parameter(weight, requires_grad=False)
        linear.bias = self.bias
        return linear

    def named_weights(self, *names: str) -> Iterator[tuple[str, Tensor]]:
        """As `Linear.named_weights`, with the parts of the form above in the place of each matrix.

        All of two dimensions are views with the output features first.
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
        """Makes neighbours of the inputs of a group, once everything is loaded.

        Raises:
            CheckpointError: the groups are not all of one size, or the stacked matrices do not have the same.
        """
        if self.group_index is None:
            return
        index, self.group_index = self.group_index.data, None
        if not torch.equal(index, index[:1].expand_as(index)):
            raise CheckpointError("g_idx differs between matrices that have the same input, which is not supported")
        groups, order = index[0].sort(stable=True)
        inputs = torch.arange(len(order), device=order.device)
        if not torch.equal(groups, (inputs // self.group_size).to(groups.dtype)):
            raise CheckpointError(f"g_idx makes groups that are not of {self.group_size} inputs each")
        if not torch.equal(order, inputs):
            self.weight.data.copy_(pack_steps(unpack_steps(self.weight, self.bits)[:, order], self.bits))
            self.input_order = nn.Parameter(order, requires_grad=False)

    def _sorted_weight(self, dtype: torch.dtype) -> Tensor:
        """[out, in], with the inputs in the order in which they lie."""
        steps = unpack_steps(self.weight, self.bits).unflatten(1, (-1, self.group_size))  # [out, groups, group_size]
        weight = steps.to(dtype).sub_(self.zero.T.to(dtype)[:, :, None])  # exact in any dtype
        return weight.mul_(self.scale.T.float()[:, :, None]).flatten(1)  # rounded once


def quantize_groups(weight: Tensor, *, bits: int, group_size: int, scale_dtype: torch.dtype) -> Mapping[str, Tensor]:
    """Rounds to the nearest of the numbers that lie evenly between a group's least and largest, zero among them.

    Args:
        weight: [out, in]
        bits: of a weight.
        group_size: inputs that share a scale.
        scale_dtype: of the scales.

    Returns:
        `weight` in the form above, `scale` and `zero` [out, groups].
    """
    top = 2**bits - 1

    def quantize(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        grouped = rows.unflatten(1, (-1, group_size))  # [rows, groups, group_size]
        low, high = grouped.amin(dim=-1).clamp_(max=0), grouped.amax(dim=-1).clamp_(min=0)
        scale = ((high - low) / top).to(scale_dtype)
        divisor = torch.where(scale > 0, scale, 1.0).float()
        zero = (-low / divisor).round_().clamp_(0, top)
        steps = grouped.div(divisor[..., None]).round_().add_(zero[..., None]).clamp_(0, top)
        return pack_steps(steps.to(torch.uint8).flatten(1), bits), scale, zero.to(torch.uint8)

    packed, scale, zero = by_rows(weight, quantize)
    return {"weight": packed, "scale": scale, "zero": zero}


def pack_steps(steps: Tensor, bits: int) -> Tensor:
    """uint8 [out, in], each below 2**bits → uint8 [out, in · bits / 8] in the order above."""
    if bits == 8:
        return steps
    low, high = steps.unflatten(1, (-1, 2, HALF)).unbind(2)  # [out, in / 32, 16] each
    return (low | (high << 4)).flatten(1)


def unpack_steps(packed: Tensor, bits: int) -> Tensor:
    """What `pack_steps` was given."""
    if bits == 8:
        return packed
    halves = packed.unflatten(1, (-1, HALF))  # [out, in / 32, 16]
    return torch.cat([halves & 15, halves >> 4], dim=-1).flatten(1)
