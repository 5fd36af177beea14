"""Products with 4- and 8-bit integer weights on CUDA.

`Int8Linear.forward` and `GroupQuantizedLinear.forward` are the reference implementations; their modules describe the
layout of weights. Up to `FEW_ROWS` rows are computed by a kernel that reads the quantized weights; its results are
bit-identical for any other rows. More rows are computed by cuBLAS from dequantized weights, because reading weights is
then a small part of the time.
"""
# pyright: basic, reportPrivateImportUsage=false, reportCallIssue=false
# (kernels are written in Triton's language, whose values have no Python types;
# a launch takes options of its own)

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from glimpse.engine.worker.layers.group_quantized import GroupQuantizedLinear
from glimpse.engine.worker.layers.linear import Int8Linear

FEW_ROWS = 64
"""Up to this number of rows, reading the weights takes longer than multiplying."""
TILE_OUTPUTS = 32
NUM_PROGRAMS = 256
"""About as many programs as a GPU runs at once. With fewer tiles of outputs, inputs are split too."""
MIN_CHUNKS = 4
"""Minimum number of chunks of inputs per program."""


def multiply(x: Tensor, linear: Int8Linear | GroupQuantizedLinear, residual: Tensor | None) -> Tensor:
    """Computes residual + linear(x), or linear(x) without a residual: [rows, in] → [rows, out]."""
    if x.shape[0] <= FEW_ROWS:
        return _multiply_few(x, linear, residual)
    match linear:
        case Int8Linear():
            product = linear(x)
        case GroupQuantizedLinear():
            product = functional.linear(_in_order(x, linear), dequantize(linear, x.dtype), linear.bias)
    return product if residual is None else residual.add_(product)


def dequantize(linear: GroupQuantizedLinear, dtype: torch.dtype) -> Tensor:
    """Returns the dequantized weights, [out, in], with the inputs in stored order."""
    outputs, row_bytes = linear.weight.shape
    inputs = row_bytes * 8 // linear.bits
    weight = linear.weight.new_empty((outputs, inputs), dtype=dtype)
    _dequantize[(outputs, triton.cdiv(inputs, 1024))](
        linear.weight,
        linear.scale,
        linear.zero,
        weight,
        inputs=inputs,
        outputs=outputs,
        bits=linear.bits,
        group_size=linear.group_size,
        piece=1024,
        num_warps=4,
    )
    return weight


def _in_order(x: Tensor, linear: GroupQuantizedLinear) -> Tensor:
    return x if linear.input_order is None else x.index_select(-1, linear.input_order)


def _multiply_few(x: Tensor, linear: Int8Linear | GroupQuantizedLinear, residual: Tensor | None) -> Tensor:
    # float32 has no tensor cores in "ieee" products: longer chunks do not fit into registers.
    sizes = (128, 64, 32, 16) if x.itemsize <= 2 else (32, 16)
    match linear:
        case Int8Linear():
            bits, group_size, zero, chunk = 8, x.shape[1], None, sizes[0]
        case GroupQuantizedLinear():
            bits, group_size, zero = linear.bits, linear.group_size, linear.zero
            x, chunk = _in_order(x, linear), next(size for size in sizes if linear.group_size % size == 0)
    x = x.contiguous()
    (num_rows, inputs), outputs = x.shape, linear.weight.shape[0]
    num_tiles = -(-outputs // TILE_OUTPUTS)
    split_inputs = _split_inputs(inputs, num_tiles, chunk)
    num_splits = -(-inputs // split_inputs)
    partial = x.new_empty((num_splits, num_rows, outputs), dtype=torch.float32)
    _multiply_quantized[(num_tiles, num_splits)](
        x,
        linear.weight,
        linear.scale,
        zero,
        partial,
        num_rows,
        inputs=inputs,
        outputs=outputs,
        bits=bits,
        group_size=group_size,
        chunk=chunk,
        split_inputs=split_inputs,
        tile_rows=max(16, triton.next_power_of_2(num_rows)),
        tile_outputs=TILE_OUTPUTS,
        num_warps=4,
        num_stages=3,
    )
    output = x.new_empty((num_rows, outputs)) if residual is None else residual
    _add_splits[(num_rows, triton.cdiv(outputs, 512))](
        partial, linear.bias, residual, output, num_rows, num_splits, outputs=outputs, piece=512, num_warps=4
    )
    return output


def _split_inputs(inputs: int, num_tiles: int, chunk: int) -> int:
    """Returns the inputs per program, a multiple of a chunk. It depends on the matrix's sizes only."""
    num_chunks = -(-inputs // chunk)
    max_splits = max(1, min(NUM_PROGRAMS // num_tiles, num_chunks // MIN_CHUNKS))
    return -(-num_chunks // max_splits) * chunk


@triton.jit
def _minima(zero, scales, used):
    """Loads what is subtracted from scaled values: see `GroupQuantizedLinear.minima`."""
    zeros = tl.load(zero, mask=used, other=0)
    return zeros.to(tl.float32) * scales if zeros.dtype == tl.uint8 else zeros.to(tl.float32)


@triton.jit(do_not_specialize=["num_rows"])
def _multiply_quantized(
    x,  # [rows, inputs]
    weight,  # [outputs, inputs · bits / 8]
    scale,  # [groups, outputs]
    zero,  # [groups, outputs], zero points or minima, or None
    partial,  # float32 [splits, rows, outputs]
    num_rows,
    inputs: tl.constexpr,
    outputs: tl.constexpr,
    bits: tl.constexpr,
    group_size: tl.constexpr,
    chunk: tl.constexpr,
    split_inputs: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_outputs: tl.constexpr,
):
    """Computes a tile of outputs of all rows over a split of the inputs: [tiles of outputs, splits] programs.

    A chunk of inputs lies within a group. Quantized values are exact in every dtype, so only their sums are scaled; the
    minimum times the sum of the inputs is subtracted.
    """
    columns = tl.program_id(0) * tile_outputs + tl.arange(0, tile_outputs)
    split = tl.program_id(1)
    rows = tl.arange(0, tile_rows)
    is_output = columns < outputs
    is_row = rows < num_rows
    weight_rows = weight + columns.to(tl.int64)[:, None] * (inputs * bits // 8)
    total = tl.zeros([tile_rows, tile_outputs], tl.float32)
    for first in range(split * split_inputs, tl.minimum((split + 1) * split_inputs, inputs), chunk):
        places = tl.arange(0, chunk * bits // 8)
        # With 4 bits, 16 bytes store 32 inputs: the low nibbles the first 16, the high nibbles the others.
        index = first + (places if bits == 8 else places // 16 * 32 + places % 16)
        readable = is_output[:, None] & (index < inputs)[None, :]
        steps = tl.load(weight_rows + first * bits // 8 + places[None, :], mask=readable, other=0)
        group = first // group_size * outputs + columns
        scales = tl.load(scale + group, mask=is_output, other=0.0).to(tl.float32)
        values = x + rows[:, None] * inputs + index[None, :]
        used = is_row[:, None] & (index < inputs)[None, :]
        near = tl.load(values, mask=used, other=0.0)
        if bits == 8:
            product = tl.dot(near, tl.trans(steps.to(tl.float32).to(near.dtype)), input_precision="ieee")
            sums = near.to(tl.float32)
        else:
            far = tl.load(values + 16, mask=used, other=0.0)
            low, high = (steps & 15).to(tl.float32).to(near.dtype), (steps >> 4).to(tl.float32).to(near.dtype)
            product = tl.dot(near, tl.trans(low), input_precision="ieee")
            product = tl.dot(far, tl.trans(high), product, input_precision="ieee")
            sums = near.to(tl.float32) + far.to(tl.float32)
        total += product * scales[None, :]
        if zero is not None:
            minima = _minima(zero + group, scales, is_output)
            total -= tl.sum(sums, 1)[:, None] * minima[None, :]
    place = (split * num_rows + rows)[:, None] * outputs + columns[None, :]
    tl.store(partial + place, total, mask=is_row[:, None] & is_output[None, :])


@triton.jit(do_not_specialize=["num_rows", "num_splits"])
def _add_splits(
    partial,  # float32 [splits, rows, outputs]
    bias,  # [outputs], or None
    residual,  # [rows, outputs], or None
    output,  # [rows, outputs]
    num_rows,
    num_splits,
    outputs: tl.constexpr,
    piece: tl.constexpr,
):
    """Sums the splits of a piece of a row in order: [rows, pieces] programs."""
    row = tl.program_id(0)
    columns = tl.program_id(1) * piece + tl.arange(0, piece)
    used = columns < outputs
    total = tl.zeros([piece], tl.float32)
    for split in range(num_splits):
        total += tl.load(partial + (split * num_rows + row) * outputs + columns, mask=used, other=0.0)
    if bias is not None:
        total += tl.load(bias + columns, mask=used, other=0.0).to(tl.float32)
    if residual is not None:
        total += tl.load(residual + row * outputs + columns, mask=used, other=0.0).to(tl.float32)
    tl.store(output + row * outputs + columns, total.to(output.dtype.element_ty), mask=used)


@triton.jit
def _dequantize(
    weight,
    scale,
    zero,
    output,  # [outputs, inputs]
    inputs: tl.constexpr,
    outputs: tl.constexpr,
    bits: tl.constexpr,
    group_size: tl.constexpr,
    piece: tl.constexpr,
):
    """Dequantizes a piece of the weights of an output: [outputs, pieces] programs."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * piece + tl.arange(0, piece)
    used = columns < inputs
    if bits == 8:
        steps = tl.load(weight + row * inputs + columns, mask=used, other=0)
    else:
        packed = tl.load(weight + row * (inputs // 2) + columns // 32 * 16 + columns % 16, mask=used, other=0)
        steps = tl.where(columns % 32 < 16, packed & 15, packed >> 4)
    group = columns // group_size * outputs + row
    scales = tl.load(scale + group, mask=used, other=0.0).to(tl.float32)
    factors = steps.to(tl.float32) * scales - _minima(zero + group, scales, used)
    tl.store(output + row * inputs + columns, factors.to(output.dtype.element_ty), mask=used)
