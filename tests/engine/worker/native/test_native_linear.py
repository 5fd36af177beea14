"""Native products, compared with the reference implementation at every level of this machine."""

import copy
from typing import Any, TypeVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from glimpse.engine.worker.layers.group_quantized import GroupQuantizedLinear
from glimpse.engine.worker.layers.linear import Int8Linear, Linear
from glimpse.engine.worker.layers.mlp import GatedMLP, PlainMLP
from glimpse.engine.worker.layers.norm import RMSNorm
from glimpse.engine.worker.layers.ops import Ops, TorchOps
from glimpse.engine.worker.native.library import Level, load_library
from glimpse.engine.worker.native.linear import PackedLinear, WeightMemory, pack
from glimpse.engine.worker.native.native_ops import NativeOps
from tests.engine.levels import LEVELS, at_each_level, needs_kernels
from tests.engine.quantized import quantize, quantized

M = TypeVar("M", bound=nn.Module)


pytestmark = needs_kernels
either_weights = pytest.mark.parametrize("int8", [False, True])
each_dtype = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
counts_of_rows = st.integers(0, 70)
sizes = st.sampled_from([1, 3, 16, 33, 50, 64, 100, 176, 384])


def make(module: M, seed: int, dtype: torch.dtype) -> M:
    """Returns the module with random parameters of realistic magnitude."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        scale = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.5
        parameter.data = (torch.randn(parameter.shape, generator=generator) * scale).to(dtype)
    return module.requires_grad_(False)


def packed(
    linear: Linear | Int8Linear | GroupQuantizedLinear, level: Level, dtype: torch.dtype = torch.bfloat16
) -> PackedLinear:
    library = load_library()
    return PackedLinear(linear, gated=False, library=library, level=level, memory=WeightMemory(library), dtype=dtype)


def exact(linear: Linear | Int8Linear, x: Tensor) -> Tensor:
    """Returns the product in float64 with the module's weights."""
    weight = linear.weight.double()
    if isinstance(linear, Int8Linear):
        weight = weight * linear.scale.double()[:, None]
    return nn.functional.linear(x.double(), weight, None if linear.bias is None else linear.bias.double())


def rows(count: int, width: int, dtype: torch.dtype, seed: int = 1) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed)).to(dtype)


@at_each_level
@each_dtype
@either_weights
@settings(max_examples=20)
@given(num_rows=counts_of_rows, inputs=sizes, outputs=sizes, bias=st.booleans(), residual=st.booleans())
def test_products_of_any_shape(
    level: Level,
    dtype: torch.dtype,
    int8: bool,
    num_rows: int,
    inputs: int,
    outputs: int,
    bias: bool,
    residual: bool,
):
    linear = make(Linear(inputs, outputs, bias=bias), 0, dtype)
    linear = quantized(linear) if int8 else linear
    x, added = rows(num_rows, inputs, dtype), rows(num_rows, outputs, dtype, 2) if residual else None
    computed = packed(linear, level, dtype).compute(x, None, added, torch.float32)
    expected = exact(linear, x) + (0 if added is None else added.double())
    assert torch.allclose(computed.double(), expected, rtol=0, atol=tolerance(int8, dtype))


@at_each_level
@each_dtype
@either_weights
def test_products_too_wide_for_the_cache(level: Level, dtype: torch.dtype, int8: bool):
    """Wide products are divided along the inputs or into groups of rows."""
    for num_rows, inputs, outputs in ((550, 3000, 70), (550, 2500, 600), (100, 900, 300), (60, 5000, 40)):
        linear = make(Linear(inputs, outputs, bias=True), 0, dtype)
        linear = quantized(linear) if int8 else linear
        x = rows(num_rows, inputs, dtype)
        computed = packed(linear, level, dtype).compute(x, None, None, torch.float32)
        assert (computed - exact(linear, x)).abs().max() < (3e-3 if int8 or dtype is torch.bfloat16 else 5e-5)


@at_each_level
@each_dtype
@either_weights
def test_products_do_not_depend_on_the_size_of_the_cache(level: Level, dtype: torch.dtype, int8: bool):
    """Blocks differ, but not the order of a sum."""
    library, linear = load_library(), make(Linear(2500, 300, bias=True), 0, dtype)
    native, x, products = packed(quantized(linear) if int8 else linear, level, dtype), rows(200, 2500, dtype), []
    for l2_bytes in (256 << 10, 512 << 10, 0):
        library.glimpse_set_l2_cache(l2_bytes)
        products.append(torch.cat([native.compute(each, None, None, torch.float32) for each in (x, x[:100])]))
    assert torch.equal(products[0], products[1])
    assert torch.equal(products[0], products[2])


@at_each_level
@each_dtype
@either_weights
def test_products_do_not_depend_on_the_threads_that_take_panels(level: Level, dtype: torch.dtype, int8: bool):
    linear = make(Linear(100, 300, bias=True), 0, dtype)
    native, x, threads = packed(quantized(linear) if int8 else linear, level, dtype), rows(600, 100, dtype), {}
    for count in (torch.get_num_threads(), 1, 3, 12):
        torch.set_num_threads(count)
        threads[count] = [native.compute(x[:num_rows], None, None, torch.float32) for num_rows in (17, 70, 600)]
    own, *others = threads
    torch.set_num_threads(own)
    for count in others:
        assert all(map(torch.equal, threads[count], threads[own]))


@at_each_level
@each_dtype
@either_weights
def test_rows_are_bit_identical_in_any_batch(level: Level, dtype: torch.dtype, int8: bool):
    linear = make(Linear(900, 100, bias=True), 0, dtype)
    native = packed(quantized(linear) if int8 else linear, level, dtype)
    x = rows(140, 900, dtype)

    def product(x: Tensor) -> Tensor:  # in float32: rounding would hide small differences
        return native.compute(x, None, None, torch.float32)

    alone = torch.cat([product(row[None]) for row in x])
    for count in (2, 8, 9, 16, 17, 33, 70, 140):
        assert torch.equal(product(x[:count]), alone[:count])


def tolerance(int8: bool, dtype: torch.dtype) -> float:
    """Returns the largest error of sums of a few hundred products; activations of int8 weights have 15 bits."""
    if int8:
        return 2e-3
    return 1e-4 if dtype is torch.bfloat16 else 5e-6


class Layer(nn.Module):
    """All fused operations, with a width that is not a multiple of a tile."""

    def __init__(self, norm: RMSNorm | nn.LayerNorm, inner: int) -> None:
        super().__init__()
        self.norm = norm
        self.linear = Linear(100, 70, bias=True)
        self.gated = GatedMLP(100, inner)
        self.gated_gelu = GatedMLP(100, inner, activation="gelu_tanh")
        self.quick = PlainMLP(100, inner, activation="quick_gelu")
        self.gelu = PlainMLP(100, inner, activation="gelu_tanh")

    def outputs(self, ops: Ops, hidden: Tensor) -> list[Tensor]:
        return [
            ops.norm_linear(hidden, self.norm, self.linear),
            ops.logits(hidden, self.norm, self.linear),
            ops.norm_mlp_add(hidden, self.norm, self.gated),
            ops.norm_mlp_add(hidden, self.norm, self.gated_gelu),
            ops.norm_mlp_add(hidden, self.norm, self.quick),
            ops.norm_mlp_add(hidden, self.norm, self.gelu),
        ]


@at_each_level
@each_dtype
@either_weights
@pytest.mark.parametrize("norm", [RMSNorm, nn.LayerNorm])
@pytest.mark.parametrize(("num_rows", "inner"), [(1, 100), (8, 90), (9, 130), (40, 100)])
def test_fused_operations_are_as_accurate_as_torch(
    level: Level, dtype: torch.dtype, int8: bool, norm: Any, num_rows: int, inner: int
):
    plain = make(Layer(norm(100, eps=1e-6), inner), 3, dtype)
    wide, native = copy.deepcopy(plain).float(), copy.deepcopy(plain)
    if int8:
        for layer in (plain, wide, native):
            quantize(layer)
    pack(native, load_library(), level, dtype)
    hidden = rows(num_rows, 100, dtype)
    for computed, rounded, exact in zip(
        native.outputs(NativeOps(load_library(), level), hidden),
        plain.outputs(TorchOps(), hidden),
        wide.outputs(TorchOps(), hidden.float()),
        strict=True,
    ):
        assert computed.dtype == rounded.dtype
        assert (computed - exact).abs().max() <= 1.5 * (rounded - exact).abs().max() + (
            1e-3 if int8 or dtype is torch.bfloat16 else 2e-5
        )


@each_dtype
def test_unpacks_rows(dtype: torch.dtype):
    linear = make(Linear(100, 70, bias=False), 0, dtype)
    indices = torch.tensor([69, 0, 33, 33])
    assert torch.equal(packed(linear, LEVELS[0], dtype).rows(indices), linear.rows(indices))
