"""The feed-forward block of encoders with GELU itself, not one of its approximations, and their projections."""

from collections.abc import Iterator
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional

from glimpse.engine.worker.layers.linear import Linear
from glimpse.engine.worker.layers.ops import Norm, Ops
from glimpse.engine.worker.layers.quantized import named_tensors


class GeluMLP(nn.Module):
    """Two products with GELU (arXiv 1606.08415) between them, after a norm or without."""

    def __init__(
        self,
        num_inputs: int,
        inner: int,
        num_outputs: int,
        *,
        norm: Norm | None = None,
        bias: bool = True,
        approximate: Literal["none", "tanh"] = "none",
    ) -> None:
        super().__init__()
        self.norm = norm
        self.linear_1 = Linear(num_inputs, inner, bias=bias)
        self.linear_2 = Linear(inner, num_outputs, bias=bias)
        self.approximate = approximate

    def forward(self, rows: Tensor, ops: Ops, residual: Tensor | None = None) -> Tensor:
        """[rows, num_inputs] → [rows, num_outputs], with `residual` added, which may be overwritten."""
        if self.norm is None:
            inner = ops.linear_add(rows, self.linear_1, None)
        else:
            inner = ops.norm_linear(rows, self.norm, self.linear_1)
        return ops.linear_add(functional.gelu(inner, approximate=self.approximate), self.linear_2, residual)

    def named_weights(
        self, *, norm: str = "", linears: tuple[str, str] = ("linear_1", "linear_2")
    ) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names, without a prefix. `norm` and `linears` are those of parts."""
        if self.norm is not None:
            yield from named_tensors(self.norm, norm)
        yield from self.linear_1.named_weights(linears[0])
        yield from self.linear_2.named_weights(linears[1])
