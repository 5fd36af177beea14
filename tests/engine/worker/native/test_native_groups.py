"""Native products with weights in groups: the kernels' arithmetic, exactly, and its accuracy in a fused operation."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from glimpse.engine.worker.layers.group_quantized import GroupQuantizedLinear, quantize_groups, unpack_values
from glimpse.engine.worker.layers.linear import Linear, replace_linears
from glimpse.engine.worker.layers.mlp import GatedMLP
from glimpse.engine.worker.layers.norm import RMSNorm
from glimpse.engine.worker.layers.ops import TorchOps
from glimpse.engine.worker.native.library import Level, load_library
from glimpse.engine.worker.native.linear import pack
from glimpse.engine.worker.native.native_ops import NativeOps
from tests.engine.levels import LEVELS, at_each_level, needs_kernels
from tests.engine.worker.native.test_native_linear import packed

pytestmark = needs_kernels


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def quantized(
    linear: Linear,
    bits: int,
    group_size: int,
    *,
    desc_act: bool = False,
    has_minimum: bool = False,
    byte_inputs: bool = False,
) -> GroupQuantizedLinear:
    """Returns the linear with weights in groups, of inputs in random order if `desc_act`; minima are random."""
    result = GroupQuantizedLinear(
        linear, bits=bits, group_size=group_size, scale_dtype=torch.bfloat16, byte_inputs=byte_inputs
    )
    parts = quantize_groups(linear.weight, bits=bits, group_size=group_size, scale_dtype=torch.bfloat16)
    result.weight.data = parts["weight"]
    result.scale.data, result.zero.data = parts["scale"].T.contiguous(), parts["zero"].T.contiguous()
    if has_minimum:
        result.zero.data = result.minima * (0.5 + random(*result.zero.shape, seed=4).sigmoid())
    if desc_act:
        order = torch.randperm(linear.weight.shape[1], generator=torch.Generator().manual_seed(3))
        result.input_order = nn.Parameter(order, requires_grad=False)
    return result


def make(inputs: int, outputs: int, group_size: int, *, bits: int = 4, **traits: bool) -> GroupQuantizedLinear:
    linear = Linear(inputs, outputs, bias=True)
    assert linear.bias is not None
    linear.weight.data = random(outputs, inputs, seed=0) * inputs**-0.5
    linear.bias.data = random(outputs, seed=1).to(torch.bfloat16)
    return quantized(linear, bits, group_size, **traits)


def with_rounded_activations(linear: GroupQuantizedLinear, x: Tensor) -> Tensor:
    """Returns the product in float64, with activations rounded as the kernels round them: to 8 bits, or to 15."""
    most = 127 if linear.bits == 4 or linear.byte_inputs else 16383
    rounded_together = packed(linear, LEVELS[0]).packed.group_size
    x = x if linear.input_order is None else x[:, linear.input_order]
    values = unpack_values(linear.weight, linear.bits).double().unflatten(1, (-1, linear.group_size))
    weight = values * linear.scale.T.double()[..., None] - linear.minima.T.double()[..., None]
    grouped = x.float().unflatten(1, (-1, rounded_together))
    limit = grouped.abs().amax(dim=-1, keepdim=True).clamp_min(1e-30)
    factor = torch.full_like(limit, most) / limit  # `most / limit` would multiply by a reciprocal
    rounded = (grouped.double() * factor.double()).round() * (limit / most)  # fused, so rounded once
    assert linear.bias is not None
    return nn.functional.linear(rounded.double().flatten(1), weight.flatten(1), linear.bias.double())


either_bits = pytest.mark.parametrize(("bits", "byte_inputs"), [(4, False), (8, False), (8, True)])
"""Activations are rounded to 8 bits for weights of 4, and with `byte_inputs`."""


@at_each_level
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@either_bits
@settings(max_examples=15)
@given(
    num_rows=st.integers(0, 40),
    groups=st.integers(1, 6),
    group_size=st.sampled_from([16, 32, 64, 96, 128]),
    outputs=st.sampled_from([1, 16, 33, 70, 128]),
    desc_act=st.booleans(),
    has_minimum=st.booleans(),
)
def test_products_of_any_shape(
    level: Level,
    bits: int,
    byte_inputs: bool,
    dtype: torch.dtype,
    num_rows: int,
    groups: int,
    group_size: int,
    outputs: int,
    desc_act: bool,
    has_minimum: bool,
):
    group_size = max(group_size, 32) if bits == 4 or byte_inputs else group_size
    inputs = groups * max(group_size, 32)
    traits = {"desc_act": desc_act, "has_minimum": has_minimum, "byte_inputs": byte_inputs}
    linear = make(inputs, outputs, group_size, bits=bits, **traits)
    x = random(num_rows, inputs, seed=2).to(dtype)
    computed = packed(linear, level, dtype).compute(x, None, None, torch.float32)
    assert torch.allclose(computed.double(), with_rounded_activations(linear, x), rtol=0, atol=2e-5)


@at_each_level
@either_bits
@pytest.mark.parametrize(("inputs", "group_size"), [(4096, 128), (3200, 32), (2560, 2560), (3232, 16)])
def test_products_too_wide_for_the_cache(level: Level, bits: int, byte_inputs: bool, inputs: int, group_size: int):
    """A panel is divided along its groups, and rows into those that fit into the cache."""
    group_size = max(group_size, 32) if bits == 4 or byte_inputs else group_size
    linear = make(inputs, 70, group_size, bits=bits, byte_inputs=byte_inputs)
    x = random(530, inputs, seed=2).to(torch.bfloat16)
    computed = packed(linear, level).compute(x, None, None, torch.float32)
    assert torch.allclose(computed.double(), with_rounded_activations(linear, x), rtol=0, atol=1e-4)


@at_each_level
@pytest.mark.parametrize("bits", [4, 8])
def test_products_do_not_depend_on_the_cache_and_on_what_is_widened_there(level: Level, bits: int):
    library, linear = load_library(), packed(make(512, 96, 128, bits=bits), level)
    x, products = random(70, 512, seed=2).bfloat16(), []
    for unpacks, l2_bytes in ((False, 0), (True, 256 << 10), (True, 0)):
        library.glimpse_set_unpacking(unpacks)
        library.glimpse_set_l2_cache(l2_bytes)
        products.append(linear(x))
    assert torch.equal(products[0], products[1])
    assert torch.equal(products[0], products[2])


@at_each_level
@pytest.mark.parametrize("byte_inputs", [False, True])
def test_large_groups_of_8_bits_do_not_overflow(level: Level, byte_inputs: bool):
    """The most that 32 bits must hold: all weights and inputs at the end of their range."""
    linear = make(1024, 32, 1024, bits=8, byte_inputs=byte_inputs)
    linear.weight.data.fill_(255)
    for zero, sign in ((0, 1), (0, -1), (255, 1)):
        linear.zero.data.fill_(zero)
        x = torch.full((3, 1024), float(sign)).to(torch.bfloat16)
        computed = packed(linear, level).compute(x, None, None, torch.float32)
        assert torch.allclose(computed.double(), with_rounded_activations(linear, x), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("bits", "trait"), [(4, None), (8, None), (4, "has_minimum"), (8, "byte_inputs")])
def test_rows_are_bit_identical_in_any_batch_and_at_every_level(bits: int, trait: str | None):
    linear = make(1280, 100, 128, bits=bits, **({trait: True} if trait else {}))
    x = random(70, 1280, seed=2).to(torch.bfloat16)

    def product(level: Level, rows: Tensor) -> Tensor:  # in float32: rounding would hide small differences
        return packed(linear, level).compute(rows, None, None, torch.float32)

    alone = torch.cat([product(LEVELS[0], row[None]) for row in x])
    for level in LEVELS:
        for count in (1, 3, 4, 5, 16, 17, 70):
            assert torch.equal(product(level, x[:count]), alone[:count])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(("bits", "group_size", "has_minimum"), [(4, 32, True), (8, 32, False), (8, 16, False)])
def test_rows_of_weights_are_those_of_the_module(bits: int, group_size: int, has_minimum: bool, dtype: torch.dtype):
    linear = make(96, 70, group_size, bits=bits, has_minimum=has_minimum)
    indices = torch.tensor([0, 69, 33, 1])
    expected = linear.dequantized(torch.float32).weight[indices].to(dtype)
    rows = packed(linear, LEVELS[0], dtype).rows(indices)
    assert torch.allclose(rows, expected, rtol=torch.finfo(dtype).eps, atol=1e-7)
    linear.dtype = dtype
    assert torch.equal(linear.rows(indices), expected)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = RMSNorm(128, eps=1e-6)
        self.mlp = GatedMLP(128, 192)


@at_each_level
@pytest.mark.parametrize("num_rows", [1, 6, 40])
@pytest.mark.parametrize(("bits", "loss"), [(4, 0.03), (8, 0.01)])
def test_fused_operations_lose_little_to_rounded_activations(level: Level, bits: int, loss: float, num_rows: int):
    plain = Layer()
    for index, parameter in enumerate(plain.parameters()):
        scale = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 1.0
        parameter.data = (random(*parameter.shape, seed=index) * scale).to(torch.bfloat16)
    replace_linears(plain, (Linear,), lambda linear, _parent: quantized(linear, bits, 64, desc_act=True))
    native = copy.deepcopy(plain)
    pack(native, load_library(), level)
    hidden = random(num_rows, 128, seed=9).to(torch.bfloat16)
    computed = NativeOps(load_library(), level).norm_mlp_add(hidden, native.norm, native.mlp, residual=False).float()
    expected = TorchOps().norm_mlp_add(hidden.float(), plain.float().norm, plain.mlp, residual=False)
    assert (computed - expected).square().mean().sqrt() < loss * expected.std()
