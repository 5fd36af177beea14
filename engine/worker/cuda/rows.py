"""Fused Triton kernels for norms and activations, which take several kernels in torch.

The reference implementations are `engine/worker/layers/norm.py` and the activations of `engine/worker/layers/mlp.py`.
"""
# pyright: basic, reportPrivateImportUsage=false, reportCallIssue=false
# (kernels are written in Triton's language, whose values have no Python types;
# a launch takes options of its own)

import torch
import triton
import triton.language as tl
from torch import Tensor

from glimpse.engine.worker.layers.mlp import Activation

PIECE = 1024
"""Elements per program of an activation."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) · weight: [rows, width] → [rows, width], in float32 up to the product with the weight."""
    x = x.contiguous()
    output = torch.empty_like(x)
    width = x.shape[-1]
    padded = triton.next_power_of_2(width)
    _rms_norm[(x.numel() // width,)](
        x, weight, output, eps, width=width, padded_width=padded, num_warps=min(16, max(4, padded // 512))
    )
    return output


def gated_silu(gate_up: Tensor) -> Tensor:
    """silu(gate) · up: [rows, 2 · width], gates first → [rows, width]"""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    output = gate_up.new_empty((rows, width))
    _gated_silu[(rows, triton.cdiv(width, PIECE))](gate_up, output, width=width, piece=PIECE, num_warps=4)
    return output


def activate(x: Tensor, activation: Activation) -> Tensor:
    """Does what `glimpse.engine.worker.layers.mlp.activate` does, to a contiguous tensor and in place."""
    grid = (triton.cdiv(x.numel(), PIECE),)
    _gelu[grid](x, x.numel(), cubic=activation == "gelu_tanh", piece=PIECE, num_warps=4)
    return x


@triton.jit
def _rms_norm(x, weight, output, eps, width: tl.constexpr, padded_width: tl.constexpr):
    """Normalizes a row: [rows] programs."""
    row = tl.program_id(0).to(tl.int64) * width
    columns = tl.arange(0, padded_width)
    used = columns < width
    values = tl.load(x + row + columns, mask=used, other=0.0)
    wide = values.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / width + eps)
    # Rounded between the two products, like the reference implementation.
    normal = (wide * scale).to(values.dtype).to(tl.float32)
    factors = tl.load(weight + columns, mask=used, other=0.0).to(tl.float32)
    tl.store(output + row + columns, (normal * factors).to(values.dtype), mask=used)


@triton.jit
def _gated_silu(gate_up, output, width: tl.constexpr, piece: tl.constexpr):
    """Computes a piece of a row: [rows, pieces] programs."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * piece + tl.arange(0, piece)
    used = columns < width
    place = gate_up + row * (2 * width) + columns
    gate = tl.load(place, mask=used, other=0.0)
    wide = gate.to(tl.float32)
    up = tl.load(place + width, mask=used, other=0.0).to(tl.float32)
    # Rounded between the two products, like the reference implementation.
    activated = (wide * tl.sigmoid(wide)).to(gate.dtype).to(tl.float32)
    tl.store(output + row * width + columns, (activated * up).to(gate.dtype), mask=used)


@triton.jit(do_not_specialize=["count"])
def _gelu(x, count, cubic: tl.constexpr, piece: tl.constexpr):
    """Computes a piece: [pieces] programs. (1 + tanh(y)) / 2 is sigmoid(2 y)."""
    places = tl.program_id(0).to(tl.int64) * piece + tl.arange(0, piece)
    used = places < count
    values = tl.load(x + places, mask=used, other=0.0)
    wide = values.to(tl.float32)
    inner = 1.5957691216057308 * (wide + 0.044715 * wide * wide * wide) if cubic else 1.702 * wide
    tl.store(x + places, (wide * tl.sigmoid(inner)).to(values.dtype), mask=used)
