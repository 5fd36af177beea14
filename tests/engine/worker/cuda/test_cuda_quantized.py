"""Products with 4- and 8-bit weights on CUDA. Interpreted without a GPU."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

pytest.importorskip("triton", reason="Triton is not installed")

from glimpse.engine.worker.cuda.quantized import FEW_ROWS, dequantize, multiply
from glimpse.engine.worker.layers.group_quantized import GroupQuantizedLinear, quantize_groups
from glimpse.engine.worker.layers.linear import Int8Linear, Linear
from tests.engine.quantized import quantized
from tests.engine.worker.cuda.steps import DEVICE

either_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def random(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def make_linear(inputs: int, outputs: int, *, bias: bool, dtype: torch.dtype) -> Linear:
    linear = Linear(inputs, outputs, bias=bias)
    linear.weight.data = random(outputs, inputs, seed=1, dtype=dtype) * inputs**-0.5
    if linear.bias is not None:
        linear.bias.data = random(outputs, seed=2, dtype=dtype)
    return linear


def grouped(
    linear: Linear, bits: int, group_size: int, *, desc_act: bool = False, has_minimum: bool = False
) -> GroupQuantizedLinear:
    result = GroupQuantizedLinear(linear, bits=bits, group_size=group_size, scale_dtype=linear.weight.dtype)
    parts = quantize_groups(linear.weight, bits=bits, group_size=group_size, scale_dtype=linear.weight.dtype)
    for name, tensor in result.named_weights("x"):
        if (part := name.removeprefix("x.")) in parts:
            tensor.copy_(parts[part])
    if has_minimum:
        result.zero.data = result.minima * (0.5 + random(*result.zero.shape, seed=4, dtype=torch.float32).sigmoid())
    if desc_act:
        order = torch.randperm(linear.weight.shape[1], generator=torch.Generator().manual_seed(3)).to(DEVICE)
        result.input_order = nn.Parameter(order, requires_grad=False)
    return result


def exact(linear: Int8Linear | GroupQuantizedLinear, x: Tensor) -> Tensor:
    """Returns the product with the dequantized weights in float64."""
    match linear:
        case Int8Linear():
            weight = linear.weight.double() * linear.scale.double()[:, None]
        case GroupQuantizedLinear():
            weight = linear.dequantized(torch.float64).weight
    return functional.linear(x.double(), weight, None if linear.bias is None else linear.bias.double())


def assert_as_accurate_as_torch(linear: Int8Linear | GroupQuantizedLinear, x: Tensor, residual: Tensor | None) -> None:
    """Compares `multiply` with the module's `forward`."""
    added = torch.zeros((), device=DEVICE) if residual is None else residual.clone()
    expected = exact(linear, x) + added
    plain_error = (linear(x) + added - expected).abs().max()
    product = multiply(x, linear, residual)
    assert product.dtype is x.dtype
    assert residual is None or product is residual
    assert (product - expected).abs().max() <= 1.5 * plain_error + 1e-5


@either_dtype
@settings(max_examples=10)
@given(
    num_rows=st.sampled_from([1, 3, 17]),
    num_groups=st.integers(1, 5),
    group_size=st.sampled_from([16, 32, 64, 96, 128, 256]),
    outputs=st.sampled_from([1, 40, 64]),
    bits=st.sampled_from([4, 8]),
    desc_act=st.booleans(),
    has_minimum=st.booleans(),
    residual=st.booleans(),
)
def test_few_rows_with_grouped_weights(
    dtype: torch.dtype,
    num_rows: int,
    num_groups: int,
    group_size: int,
    outputs: int,
    bits: int,
    desc_act: bool,
    has_minimum: bool,
    residual: bool,
):
    group_size = max(group_size, 32) if bits == 4 else group_size
    inputs = num_groups * max(group_size, 32)
    plain = make_linear(inputs, outputs, bias=not residual, dtype=dtype)
    linear = grouped(plain, bits, group_size, desc_act=desc_act, has_minimum=has_minimum)
    added = random(num_rows, outputs, seed=4, dtype=dtype) if residual else None
    assert_as_accurate_as_torch(linear, random(num_rows, inputs, seed=5, dtype=dtype), added)


@either_dtype
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize(("num_rows", "inputs", "outputs"), [(1, 100, 70), (20, 1100, 33)])
def test_few_rows_with_int8_weights(dtype: torch.dtype, residual: bool, num_rows: int, inputs: int, outputs: int):
    linear = quantized(make_linear(inputs, outputs, bias=True, dtype=dtype))
    added = random(num_rows, outputs, seed=4, dtype=dtype) if residual else None
    assert_as_accurate_as_torch(linear, random(num_rows, inputs, seed=5, dtype=dtype), added)


@pytest.mark.parametrize("residual", [False, True])
def test_many_rows_match_torch(residual: bool):
    plain = make_linear(64, 40, bias=True, dtype=torch.float32)
    for linear in (grouped(plain, 4, 32, desc_act=True), quantized(plain)):
        x = random(FEW_ROWS + 1, 64, seed=5, dtype=torch.float32)
        added = random(FEW_ROWS + 1, 40, seed=4, dtype=torch.float32) if residual else None
        assert_as_accurate_as_torch(linear, x, added)


@either_dtype
@pytest.mark.parametrize(("bits", "has_minimum"), [(4, False), (8, False), (4, True)])
def test_dequantizes_like_the_module(dtype: torch.dtype, bits: int, has_minimum: bool):
    linear = grouped(make_linear(1120, 3, bias=False, dtype=dtype), bits, 32, has_minimum=has_minimum)
    expected = linear.dequantized(dtype).weight
    # A GPU may round a product and a difference once.
    assert torch.allclose(dequantize(linear, dtype), expected, rtol=torch.finfo(dtype).eps, atol=1e-7)


@pytest.mark.parametrize("bits", [4, 8])
def test_rows_are_bit_identical_in_any_small_batch(bits: int):
    linear = grouped(make_linear(1024, 40, bias=True, dtype=torch.bfloat16), bits, 128)
    x = random(40, 1024, seed=5, dtype=torch.bfloat16)
    together = multiply(x, linear, None)
    for rows in (slice(0, 1), slice(7, 24)):
        assert torch.equal(multiply(x[rows], linear, None), together[rows])
