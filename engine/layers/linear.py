"""Matrix products with weights, stored as they are computed with or as int8. Knows nothing of the model around them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

ROWS_AT_ONCE = 64
"""Of a matrix that is quantized on the CPU: so few that they stay in its cache between the passes over them."""


class Linear(nn.Module):
    """y = x Wᵀ + b, where W may be several matrices over the same input, stacked so that one product serves all."""

    def __init__(self, in_features: int, out_features: int | Sequence[int], *, bias: bool) -> None:
        super().__init__()
        self.sizes = (out_features,) if isinstance(out_features, int) else tuple(out_features)
        rows = sum(self.sizes)
        self.weight = nn.Parameter(torch.empty(rows, in_features), requires_grad=False)  # [out, in]
        self.bias = nn.Parameter(torch.empty(rows), requires_grad=False) if bias else None  # [out]

    def forward(self, x: Tensor) -> Tensor:
        """[…, in] → […, out]"""
        return functional.linear(x, self.weight, self.bias)

    def rows(self, indices: Tensor) -> Tensor:
        """Rows of W, [indices, in]: what an embedding table is asked for that serves as the output head too."""
        return functional.embedding(indices, self.weight)

    def named_weights(self, *names: str) -> Iterator[tuple[str, Tensor]]:
        """The stacked matrices and biases one by one, as views, under the names they have in a checkpoint."""
        for name, rows in stacked(names, self.sizes):
            yield f"{name}.weight", self.weight.data[rows]
            if self.bias is not None:
                yield f"{name}.bias", self.bias.data[rows]


class RowScaledLinear(nn.Module):
    """A `Linear` whose weights are numbers of a narrow type, `dtype`, times a scale for each output feature."""

    dtype: ClassVar[torch.dtype]

    def __init__(self, linear: Linear) -> None:
        """Of the sizes of `linear` and with its bias; the weights are empty until they are loaded."""
        super().__init__()
        self.sizes = linear.sizes
        weight = torch.empty_like(linear.weight, dtype=self.dtype)
        scale = linear.weight.new_empty(len(weight), dtype=torch.float32)
        self.weight = nn.Parameter(weight, requires_grad=False)  # [out, in]
        self.scale = nn.Parameter(scale, requires_grad=False)  # [out]
        self.bias = linear.bias

    def named_weights(self, *names: str) -> Iterator[tuple[str, Tensor]]:
        """As `Linear.named_weights`, with numbers and scales in the place of each matrix."""
        for name, rows in stacked(names, self.sizes):
            yield f"{name}.weight", self.weight.data[rows]
            yield f"{name}.scale", self.scale.data[rows, None]
            if self.bias is not None:
                yield f"{name}.bias", self.bias.data[rows]


class Int8Linear(RowScaledLinear):
    """Whose weights are whole numbers from -127 to 127, as `quantize_int8` makes them."""

    dtype = torch.int8

    def forward(self, x: Tensor) -> Tensor:
        """[…, in] → […, out]"""
        product = functional.linear(x, self.weight.to(x.dtype)).float() * self.scale  # whole numbers are exact
        return (product if self.bias is None else product + self.bias).to(x.dtype)


def quantize_int8(weight: Tensor) -> Mapping[str, Tensor]:
    """[out, in] → `weight`, int8 [out, in], and `scale`, float32 [out, 1]."""
    steps, scale = by_rows(weight, _int8_rows)
    return {"weight": steps, "scale": scale}


def _int8_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    scale = rows.abs().amax(dim=1, keepdim=True) / 127
    return (rows / torch.where(scale > 0, scale, 1.0)).round_().to(torch.int8), scale


def by_rows(weight: Tensor, quantize: Callable[[Tensor], tuple[Tensor, ...]]) -> Iterator[Tensor]:
    """What `quantize` makes of a matrix's rows in float32, a few at a time: each of its tensors for all rows."""
    at_once = ROWS_AT_ONCE if weight.device.type == "cpu" else max(1, 2**26 // weight.shape[1])
    parts = [quantize(rows.float()) for rows in weight.split(at_once)]
    return (torch.cat(tensors) for tensors in zip(*parts, strict=True))


def stacked(names: Sequence[str], sizes: Sequence[int]) -> Iterator[tuple[str, slice]]:
    """Which rows of a stack are each matrix's."""
    start = 0
    for name, size in zip(names, sizes, strict=True):
        yield name, slice(start, start + size)
        start += size


def replace_linears(root: nn.Module, kinds: tuple[type[nn.Module], ...], replace: Callable[..., nn.Module]) -> None:
    """Puts `replace(linear, parent)` in the place of each module of these kinds, one after the other.

    What is replaced is freed before the next, so that weights need not fit into memory twice.
    """
    for parent in list(root.modules()):
        for name in [name for name, child in parent.named_children() if isinstance(child, kinds)]:
            setattr(parent, name, replace(parent.get_submodule(name), parent))
