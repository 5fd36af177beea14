"""Linears in the 8-bit floating point type e4m3: weights by output feature, activations by token as they come.

On a GPU the product is torch's own; elsewhere it is computed from the same rounded numbers in float32.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from glimpse.engine.layers.linear import RowScaledLinear, by_rows

FP8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FP8).max
LEAST_SCALE = 1e-12
"""So that rows of zeros have one that can be divided by."""
MULTIPLE = 16
"""Of which inputs and outputs must be a multiple where the product is the GPU's."""


class Fp8Linear(RowScaledLinear):
    """Whose weights are e4m3 numbers, as `quantize_fp8` makes them; so are its inputs, with a scale for each token."""

    dtype = FP8

    def forward(self, x: Tensor) -> Tensor:
        """[…, in] → […, out]"""
        rows, row_scale = round_rows(x.flatten(0, -2).float())  # [tokens, in], [tokens, 1]
        multiply = _multiply_on_gpu if x.is_cuda else _multiply
        product = multiply(rows, row_scale, self.weight, self.scale[None], self.bias)
        return product.to(x.dtype).view(*x.shape[:-1], -1)


def quantize_fp8(weight: Tensor) -> Mapping[str, Tensor]:
    """[out, in] → `weight`, e4m3 [out, in], and `scale`, float32 [out, 1]."""
    values, scale = by_rows(weight, round_rows)
    return {"weight": values, "scale": scale}


def round_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """float32 [rows, columns] → e4m3 of the same shape and float32 [rows, 1]: a row's largest becomes e4m3's."""
    scale = (rows.abs().amax(dim=1, keepdim=True) / LARGEST).clamp_(min=LEAST_SCALE)
    return (rows / scale).to(FP8), scale


def why_not_fp8(device: torch.device) -> str | None:
    """Why a device cannot multiply as `Fp8Linear` does; None if it can.

    It is tried: which GPUs can depends on how torch was built and on its libraries.
    """
    if device.type != "cuda":
        return None
    ones = torch.ones(MULTIPLE, MULTIPLE, device=device)
    scale = torch.ones(MULTIPLE, device=device)
    try:
        _multiply_on_gpu(ones.to(FP8), scale[:, None], ones.to(FP8), scale[None], scale)
    except RuntimeError as error:
        return f"this GPU does not multiply numbers of 8 bits by rows: {str(error).splitlines()[0]}"
    return None


def _multiply(rows: Tensor, row_scale: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """[tokens, in], [tokens, 1], [out, in], [1, out], [out] → float32 [tokens, out]"""
    product = functional.linear(rows.float(), weight.float()) * row_scale * scale
    return product if bias is None else product + bias


def _multiply_on_gpu(rows: Tensor, row_scale: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """The same in bfloat16, the one type that products by rows have on all GPUs."""
    return torch.ops.aten._scaled_mm(  # noqa: SLF001 - what torch.nn.functional.scaled_mm calls, of a settled form
        rows,
        weight.T,
        scale_a=row_scale,
        scale_b=scale,
        bias=None if bias is None else bias.to(torch.bfloat16),
        out_dtype=torch.bfloat16,
        use_fast_accum=True,  # without, products by rows are far slower on Hopper
    )
