"""FP8 (e4m3) linears: weights with a scale per output feature, activations quantized dynamically per token.

On a GPU the product is torch's scaled matrix product; elsewhere it is computed in float32 from the same rounded values.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from glimpse.engine.worker.layers.linear import RowScaledLinear, by_rows

FP8 = torch.float8_e4m3fn
FP8_MAX = torch.finfo(FP8).max
MIN_SCALE = 1e-12
"""Lower bound of scales, so that rows of zeros do not divide by zero."""
FP8_ALIGNMENT = 16
"""The GPU product requires inputs and outputs to be multiples of this."""


class Fp8Linear(RowScaledLinear):
    """A linear with e4m3 weights from `quantize_fp8`; its inputs are rounded to e4m3 with a scale per token."""

    dtype = FP8

    def forward(self, x: Tensor) -> Tensor:
        """[…, in] → […, out]"""
        rows, row_scale = round_rows(x.flatten(0, -2).float())  # [tokens, in], [tokens, 1]
        multiply = _multiply_on_gpu if x.is_cuda else _multiply
        product = multiply(rows, row_scale, self.weight, self.scale[None], self.bias)
        return product.to(x.dtype).view(*x.shape[:-1], -1)


def quantize_fp8(weight: Tensor) -> Mapping[str, Tensor]:
    """Quantizes [out, in] to `weight`, e4m3 [out, in], and `scale`, float32 [out, 1]."""
    values, scale = by_rows(weight, round_rows)
    return {"weight": values, "scale": scale}


def round_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Quantizes float32 [rows, columns] to e4m3 with scales [rows, 1] that map each row's maximum to e4m3's maximum."""
    scale = (rows.abs().amax(dim=1, keepdim=True) / FP8_MAX).clamp_(min=MIN_SCALE)
    return (rows / scale).to(FP8), scale


def why_not_fp8(device: torch.device) -> str | None:
    """Returns why a device cannot compute `Fp8Linear`, or None if it can.

    Runs a small product, because support depends on the GPU, on torch's build and on its libraries.
    """
    if device.type != "cuda":
        return None
    ones = torch.ones(FP8_ALIGNMENT, FP8_ALIGNMENT, device=device)
    scale = torch.ones(FP8_ALIGNMENT, device=device)
    try:
        _multiply_on_gpu(ones.to(FP8), scale[:, None], ones.to(FP8), scale[None], scale)
    except RuntimeError as error:
        return f"this GPU does not support row-wise scaled fp8 products: {str(error).splitlines()[0]}"
    return None


def _multiply(rows: Tensor, row_scale: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """[tokens, in], [tokens, 1], [out, in], [1, out], [out] → float32 [tokens, out]"""
    product = functional.linear(rows.float(), weight.float()) * row_scale * scale
    return product if bias is None else product + bias


def _multiply_on_gpu(rows: Tensor, row_scale: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """Multiplies like `_multiply`, to bfloat16: the one output type of row-wise scaled products on all GPUs."""
    return torch.ops.aten._scaled_mm(  # noqa: SLF001 - what torch.nn.functional.scaled_mm calls, with a stable signature
        rows,
        weight.T,
        scale_a=row_scale,
        scale_b=scale,
        bias=None if bias is None else bias.to(torch.bfloat16),
        out_dtype=torch.bfloat16,
        use_fast_accum=True,  # row-wise scaled products are far slower on Hopper without it
    )
