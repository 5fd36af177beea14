"""Quantized linears: memory layout of weights, products and rounding errors."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from glimpse.engine.errors import CheckpointError
from glimpse.engine.worker.layers.fp8 import FP8_MAX, Fp8Linear, quantize_fp8, round_rows
from glimpse.engine.worker.layers.group_quantized import (
    GroupQuantizedLinear,
    pack_values,
    quantize_groups,
    unpack_values,
)
from glimpse.engine.worker.layers.linear import Int8Linear, Linear, quantize_int8
from glimpse.engine.worker.layers.quantized import QuantizationScheme, quantize_linears
from glimpse.engine.worker.loading.weight_conversion import make_converter

SIZES = (48, 16, 32)
INPUTS = 256
seeds = st.integers(0, 2**32 - 1)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def load(scheme: QuantizationScheme, *, bias: bool = True) -> tuple[nn.Module, Tensor, Tensor | None]:
    """Returns stacked linears of a scheme, loaded like a checkpoint, with their unquantized weights and biases."""
    root = nn.Sequential(Linear(INPUTS, SIZES, bias=bias))
    quantize_linears(root, scheme, scale_dtype=torch.bfloat16)
    linear = root[0]
    assert isinstance(linear, Int8Linear | GroupQuantizedLinear | Fp8Linear)
    destinations = dict(linear.named_weights("a", "b", "c"))
    convert = make_converter(scheme, destinations, lambda name, tensor: ((name, tensor),))
    weights = [random(size, INPUTS, seed=size) for size in SIZES]
    biases = [random(size, seed=size) for size in SIZES]
    for name, weight, values in zip("abc", weights, biases, strict=True):
        for tensor_name, tensor in [*convert(f"{name}.weight", weight), *convert(f"{name}.bias", values)]:
            if bias or not tensor_name.endswith("bias"):
                destinations.pop(tensor_name).copy_(tensor)
    assert not destinations
    return linear, torch.cat(weights), torch.cat(biases) if bias else None


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("scheme", "tolerance"), [("int8", 0.01), ("fp8", 0.04), ("int4", 0.12)])
def test_products_are_as_accurate_as_the_scheme_allows(scheme: QuantizationScheme, tolerance: float, bias: bool):
    linear, weight, biases = load(scheme, bias=bias)
    x = random(3, 7, INPUTS, seed=1)
    expected = nn.functional.linear(x, weight, biases)
    error = (linear(x) - expected).square().mean().sqrt() / expected.std()
    assert tolerance / 3 < error < tolerance


def dequantized(weight: Tensor, *, bits: int, group_size: int) -> tuple[Tensor, Tensor]:
    """Returns the weights after quantization in groups, and the scales, [out, groups]."""
    rows, inputs = weight.shape
    linear = GroupQuantizedLinear(
        Linear(inputs, rows, bias=False), bits=bits, group_size=group_size, scale_dtype=torch.float32
    )
    stored = dict(linear.named_weights("w"))
    parts = quantize_groups(weight, bits=bits, group_size=group_size, scale_dtype=torch.float32)
    for part, tensor in parts.items():
        stored[f"w.{part}"].copy_(tensor)
    return linear.dequantized(torch.float32).weight, parts["scale"]


@given(seed=seeds, group_size=st.sampled_from([32, 64, 128, 256]))
def test_8_bit_groups_round_to_nearest(seed: int, group_size: int):
    weight = random(5, 256, seed=seed)
    rounded, scale = dequantized(weight, bits=8, group_size=group_size)
    error = (rounded - weight).abs().unflatten(1, (-1, group_size))
    # The zero point is rounded too, so values at the ends of the range can be off by another half step.
    assert (error <= scale[..., None] * 1.001).all()
    assert error.mean() <= scale.mean() / 2


@given(seed=seeds, group_size=st.sampled_from([32, 64, 128, 256]))
def test_4_bit_groups_lose_no_more_than_by_rounding_to_nearest(seed: int, group_size: int):
    weight = random(32, 256, seed=seed)
    grouped = weight.unflatten(1, (-1, group_size))
    low, high = grouped.amin(dim=-1, keepdim=True).clamp(max=0), grouped.amax(dim=-1, keepdim=True).clamp(min=0)
    scale = (high - low) / 15
    zero = (-low / scale).round()
    nearest = ((grouped / scale).round() + zero).clamp(0, 15).sub(zero) * scale
    loss_of_nearest = (nearest - grouped).square().sum(dim=-1)
    rounded, _ = dequantized(weight, bits=4, group_size=group_size)
    loss = (rounded - weight).unflatten(1, (-1, group_size)).square().sum(dim=-1)
    assert (loss <= loss_of_nearest * 1.0001).all()
    assert loss.sum() < 0.98 * loss_of_nearest.sum()


def test_zeros_are_exact():
    weight = random(4, 64)
    weight[:2] = 0
    weight[2, ::3] = 0
    for quantize in (quantize_int8, quantize_fp8):
        parts = quantize(weight)
        assert ((parts["weight"].float() * parts["scale"])[weight == 0] == 0).all()
    parts = quantize_groups(weight, bits=4, group_size=32, scale_dtype=torch.bfloat16)
    values = unpack_values(parts["weight"], 4).unflatten(1, (-1, 32))
    assert ((values - parts["zero"][..., None]).flatten(1)[weight == 0] == 0).all()


@given(seed=seeds, bits=st.sampled_from([4, 8]), groups=st.integers(1, 5))
def test_unpacking_reverses_packing(seed: int, bits: int, groups: int):
    values = torch.randint(0, 2**bits, (3, 32 * groups), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)
    assert torch.equal(unpack_values(pack_values(values, bits), bits), values)


def test_a_byte_packs_inputs_sixteen_apart():
    matrix = (torch.arange(64) % 13).to(torch.uint8)[None]
    packed = pack_values(matrix, 4)[0].tolist()
    values = matrix[0].tolist()
    for block in range(2):
        for byte in range(16):
            low, high = values[32 * block + byte], values[32 * block + byte + 16]
            assert packed[16 * block + byte] == low + 16 * high


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fp8_products_match_products_of_rounded_values(dtype: torch.dtype):
    linear, _, _ = load("fp8")
    assert isinstance(linear, Fp8Linear)
    x = random(5, INPUTS).to(dtype)
    scale = x.double().abs().amax(dim=1, keepdim=True) / 448
    rounded = (x.double() / scale).to(torch.float8_e4m3fn).double() * scale
    weight = linear.weight.double() * linear.scale.double()[:, None]
    assert linear.bias is not None
    expected = rounded @ weight.T + linear.bias.double()
    assert torch.allclose(linear(x).double(), expected, rtol=1e-2 if dtype is torch.bfloat16 else 1e-4, atol=1e-3)


@given(exponent=st.integers(-44, 38), seed=seeds)
def test_fp8_rounding_is_finite_for_rows_of_any_magnitude(exponent: int, seed: int):
    rows = torch.cat([random(2, 32, seed=seed).clamp(-3, 3) * 10.0**exponent, torch.zeros(1, 32)])
    values, scale = round_rows(rows)
    assert values.float().isfinite().all()
    if exponent >= -9:
        assert values[:2].float().abs().amax(dim=1).tolist() == [FP8_MAX, FP8_MAX]
        assert torch.allclose(values.float() * scale, rows, rtol=0.07, atol=float(scale.max()))


def test_refuses_sizes_that_a_scheme_does_not_support():
    cases: tuple[tuple[QuantizationScheme, int], ...] = (("int4", 48), ("fp8", 40))
    for scheme, inputs in cases:
        with pytest.raises(
            CheckpointError, match=f"{scheme} weights: expected a multiple of .* inputs .*, got {inputs}"
        ):
            quantize_linears(nn.Sequential(Linear(inputs, 16, bias=False)), scheme, scale_dtype=torch.float32)


@pytest.mark.parametrize(("inputs", "group_size"), [(256, 128), (320, 64), (96, 32)])
def test_int4_takes_the_largest_group_that_divides_the_inputs(inputs: int, group_size: int):
    root = nn.Sequential(Linear(inputs, 16, bias=False))
    quantize_linears(root, "int4", scale_dtype=torch.bfloat16)
    assert isinstance(root[0], GroupQuantizedLinear)
    assert root[0].group_size == group_size
