"""Linear layers with unquantized weights or with int8 weights."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, UntypedStorage, nn
from torch.nn import functional

ROWS_AT_ONCE = 64
"""Rows quantized at once on the CPU: few enough to stay in its cache between the passes over them."""


def empty_parameter(*shape: int) -> nn.Parameter:
    """Returns weights without values, which loading fills."""
    return nn.Parameter(torch.empty(shape), requires_grad=False)


class Linear(nn.Module):
    """y = x Wᵀ + b. W may stack several matrices with the same input, which are then computed in one product."""

    def __init__(self, in_features: int, out_features: int | Sequence[int], *, bias: bool) -> None:
        super().__init__()
        self.in_features = in_features
        self.sizes = (out_features,) if isinstance(out_features, int) else tuple(out_features)
        rows = sum(self.sizes)
        self.weight = empty_parameter(rows, in_features)  # [out, in]
        self.bias = empty_parameter(rows) if bias else None  # [out]

    def forward(self, x: Tensor) -> Tensor:
        """[…, in] → […, out]"""
        return functional.linear(x, self.weight, self.bias)

    def rows(self, indices: Tensor) -> Tensor:
        """Returns rows of W, [indices, in]: the embedding lookup of an output head with tied weights."""
        return functional.embedding(indices, self.weight)

    def named_weights(self, *names: str) -> Iterator[tuple[str, Tensor]]:
        """Yields the stacked matrices and biases as views, with their checkpoint names."""
        for name, rows in stacked(names, self.sizes):
            yield f"{name}.weight", self.weight.data[rows]
            if self.bias is not None:
                yield f"{name}.bias", self.bias.data[rows]


class UnquantizedLinear(Linear):
    """A linear that is never quantized: a small one whose rounding decides much, such as which experts compute."""


class RowScaledLinear(nn.Module):
    """A `Linear` with weights of a narrow `dtype` and a scale for each output feature."""

    dtype: ClassVar[torch.dtype]

    def __init__(self, linear: Linear) -> None:
        """Takes the sizes and the bias of `linear`; weights are uninitialized until they are loaded."""
        super().__init__()
        self.in_features, self.sizes = linear.in_features, linear.sizes
        weight = linear.weight.new_empty(linear.weight.shape, dtype=self.dtype)
        scale = linear.weight.new_empty(len(weight), dtype=torch.float32)
        self.weight = nn.Parameter(weight, requires_grad=False)  # [out, in]
        self.scale = nn.Parameter(scale, requires_grad=False)  # [out]
        self.bias = linear.bias

    def named_weights(self, *names: str) -> Iterator[tuple[str, Tensor]]:
        """Does what `Linear.named_weights` does, with quantized values and scales for each matrix."""
        for name, rows in stacked(names, self.sizes):
            yield f"{name}.weight", self.weight.data[rows]
            yield f"{name}.scale", self.scale.data[rows, None]
            if self.bias is not None:
                yield f"{name}.bias", self.bias.data[rows]


class Int8Linear(RowScaledLinear):
    """A linear with int8 weights from -127 to 127, from `quantize_int8`."""

    dtype = torch.int8

    @classmethod
    def quantized(cls, linear: Linear) -> "Int8Linear":
        """Returns a linear with the quantized weights of `linear`: without values, as these, on the meta device."""
        quantized = cls(linear)
        if linear.weight.is_meta:
            return quantized
        tensors = quantize_int8(linear.weight)
        quantized.weight.data.copy_(tensors["weight"])
        quantized.scale.data.copy_(tensors["scale"].flatten())
        return quantized

    def forward(self, x: Tensor) -> Tensor:
        """[…, in] → […, out]"""
        product = functional.linear(x, self.weight.to(x.dtype)).float() * self.scale  # int8 values are exact
        return (product if self.bias is None else product + self.bias).to(x.dtype)


def quantize_int8(weight: Tensor) -> Mapping[str, Tensor]:
    """Quantizes [out, in] to `weight`, int8 [out, in], and `scale`, float32 [out, 1]."""
    values, scale = by_rows(weight, _int8_rows)
    return {"weight": values, "scale": scale}


def _int8_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    scale = rows.abs().amax(dim=1, keepdim=True) / 127
    return (rows / torch.where(scale > 0, scale, 1.0)).round_().to(torch.int8), scale


def by_rows(weight: Tensor, quantize: Callable[[Tensor], tuple[Tensor, ...]]) -> Iterator[Tensor]:
    """Applies `quantize` to a matrix in float32, a few rows at a time, and concatenates each of its results."""
    at_once = ROWS_AT_ONCE if weight.device.type == "cpu" else max(1, 2**26 // weight.shape[1])
    parts = [quantize(rows.float()) for rows in weight.split(at_once)]
    return (torch.cat(tensors) for tensors in zip(*parts, strict=True))


def stacked(names: Sequence[str], sizes: Sequence[int]) -> Iterator[tuple[str, slice]]:
    """Yields each matrix's name and its rows in the stack. One name is that of the stack."""
    if len(names) == 1:
        sizes = (sum(sizes),)
    start = 0
    for name, size in zip(names, sizes, strict=True):
        yield name, slice(start, start + size)
        start += size


def stacked_names(named: Iterable[tuple[str, Tensor]]) -> dict[UntypedStorage, list[str]]:
    """Returns the names, without `.weight`, of the matrices that each linear stacks, by what its `weight` stores.

    Args:
        named: tensors by name, as `named_weights` yields them.
    """
    names: dict[UntypedStorage, list[str]] = {}
    for name, tensor in named:
        if name.endswith(".weight"):
            names.setdefault(tensor.untyped_storage(), []).append(name.removesuffix(".weight"))
    return names


def replace_linears(root: nn.Module, kinds: tuple[type[nn.Module], ...], replace: Callable[..., nn.Module]) -> None:
    """Replaces each module of the given types by `replace(linear, parent)`, one at a time.

    Each replaced module is freed before the next one, so the weights need not fit into memory twice.
    """
    # A list with the replaced modules themselves would keep all of them.
    for parent in [module for module in root.modules() if not isinstance(module, kinds)]:
        for name in [name for name, child in parent.named_children() if isinstance(child, kinds)]:
            setattr(parent, name, replace(parent.get_submodule(name), parent))
