"""Matrix products with weights. Knows nothing of the model around them: the one place where weights could be packed."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


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

    def stored_tensors(self, *names: str) -> Iterator[tuple[str, Tensor]]:
        """The stacked matrices and biases one by one, as views, under the names they have in a checkpoint."""
        starts = [sum(self.sizes[:index]) for index in range(len(self.sizes))]
        for name, start, size in zip(names, starts, self.sizes, strict=True):
            yield f"{name}.weight", self.weight.data[start : start + size]
            if self.bias is not None:
                yield f"{name}.bias", self.bias.data[start : start + size]
