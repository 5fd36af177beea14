"""Matrix products with weights, stored as they are computed with or as int8. Knows nothing of the model around them."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

ROWS_AT_ONCE = 64
"""Of a matrix that is quantized: so few that they stay in the processor's cache between the passes over them."""


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

    def stored_tensors(self, *names: str) -> Iterator[tuple[str, Tensor]]:
        """The stacked matrices and biases one by one, as views, under the names they have in a checkpoint."""
        starts = [sum(self.sizes[:index]) for index in range(len(self.sizes))]
        for name, start, size in zip(names, starts, self.sizes, strict=True):
            yield f"{name}.weight", self.weight.data[start : start + size]
            if self.bias is not None:
                yield f"{name}.bias", self.bias.data[start : start + size]


class QuantizedLinear(nn.Module):
    """A `Linear` whose weights are whole numbers from -127 to 127 times a scale for each output feature."""

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        steps = torch.empty_like(linear.weight, dtype=torch.int8)
        scale = linear.weight.new_empty(len(steps), dtype=torch.float32)
        for stored, part, part_scale in zip(
            *(t.split(ROWS_AT_ONCE) for t in (linear.weight, steps, scale)), strict=True
        ):
            wide = stored.float()
            part_scale.copy_(wide.abs().amax(dim=1) / 127)
            part.copy_((wide / torch.where(part_scale > 0, part_scale, 1.0)[:, None]).round_())
        self.weight = nn.Parameter(steps, requires_grad=False)  # [out, in]
        self.scale = nn.Parameter(scale, requires_grad=False)  # [out]
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """[…, in] → […, out]"""
        product = functional.linear(x, self.weight.to(x.dtype)).float() * self.scale  # whole numbers are exact
        return (product if self.bias is None else product + self.bias).to(x.dtype)


def replace_linears(root: nn.Module, kinds: tuple[type[nn.Module], ...], replace: Callable[..., nn.Module]) -> None:
    """Puts `replace(linear, parent)` in the place of each module of these kinds, one after the other.

    What is replaced is freed before the next, so that weights need not fit into memory twice.
    """
    for parent in list(root.modules()):
        for name in [name for name, child in parent.named_children() if isinstance(child, kinds)]:
            setattr(parent, name, replace(parent.get_submodule(name), parent))


def quantize(root: nn.Module) -> None:
    """Makes every `Linear` a `QuantizedLinear`."""
    replace_linears(root, (Linear,), lambda linear, _parent: QuantizedLinear(linear))
