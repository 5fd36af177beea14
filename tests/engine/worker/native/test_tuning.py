"""What is tuned to the processor: forced, measured, and without effect on products."""

import pytest
import torch
from torch import nn

from glimpse.engine.errors import CheckpointError
from glimpse.engine.worker.layers.group_quantized import GroupQuantizedLinear, quantize_groups
from glimpse.engine.worker.layers.linear import Int8Linear, Linear
from glimpse.engine.worker.native import tuning
from glimpse.engine.worker.native.library import Level, choose_level, load_library
from glimpse.engine.worker.native.linear import PackedLinear, WeightMemory
from glimpse.engine.worker.native.tuning import (
    DISTANCES,
    ROWS,
    VARIABLE,
    fastest,
    measured_linears,
    set_prefetching,
    set_unpacking,
)
from tests.engine.levels import at_each_level, needs_kernels

pytestmark = needs_kernels


def packed(count: int = 1, level: Level | None = None) -> nn.Sequential:
    """Returns linears of 64 inputs and 96 outputs, so of 12 KiB."""
    library, generator = load_library(), torch.Generator().manual_seed(0)
    model, memory = nn.Sequential(), WeightMemory(library)
    for _ in range(count):
        linear = Linear(64, 96, bias=False)
        linear.weight.data = torch.randn(96, 64, generator=generator).to(torch.bfloat16)
        model.append(PackedLinear(linear, gated=False, library=library, level=level or choose_level(), memory=memory))
    return model


@at_each_level
def test_products_do_not_depend_on_the_distance(level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = packed(level=level), torch.randn(8, 64).to(torch.bfloat16)
    products = []
    for distance in (0, 64, *DISTANCES[1:]):
        monkeypatch.setenv(VARIABLE, str(distance))
        assert set_prefetching(model, load_library()) == [distance] * len(ROWS)
        products.append(torch.cat([model(x[:3]), model(x)]))
    assert all(torch.equal(products[0], each) for each in products[1:])


def quantized(*, byte_inputs: bool) -> Int8Linear | GroupQuantizedLinear:
    """Returns a linear with weights of 8 bits; with `byte_inputs`, its activations are rounded to 8 bits (w8a8)."""
    linear = Linear(512, 96, bias=False)
    linear.weight.data = torch.randn(96, 512).to(torch.bfloat16)
    if not byte_inputs:
        return Int8Linear.quantized(linear)
    result = GroupQuantizedLinear(linear, bits=8, group_size=32, scale_dtype=torch.bfloat16, byte_inputs=True)
    parts = quantize_groups(linear.weight, bits=8, group_size=32, scale_dtype=torch.bfloat16)
    result.weight.data = parts["weight"]
    result.scale.data, result.zero.data = parts["scale"].T.contiguous(), parts["zero"].T.contiguous()
    return result


@at_each_level
@pytest.mark.parametrize("byte_inputs", [False, True], ids=["int8", "w8a8"])
def test_where_vector_units_widen_weights_is_measured_if_they_do(
    level: Level, byte_inputs: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tuning, "_LEAST_BYTES", 1)
    library = load_library()
    model = PackedLinear(
        quantized(byte_inputs=byte_inputs), gated=False, library=library, level=level, memory=WeightMemory(library)
    )
    with caplog.at_level("INFO"):
        place = "the cache" if set_unpacking(model, library) else "registers"
    message = f"many rows are multiplied by weights that are widened in {place}"
    # Dot products of bytes take integers as they are, and so do the levels from AMX on.
    widens = level in (Level.AVX2, Level.AVX512) or (level < Level.AMX and not byte_inputs)
    assert caplog.messages == ([message] if widens else [])
    library.glimpse_set_unpacking(True)


def test_a_distance_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "4K")
    with pytest.raises(CheckpointError, match=rf"^{VARIABLE}: expected a number of bytes, such as 4096, or 0, got 4K$"):
        set_prefetching(packed(), load_library())


def test_a_model_that_caches_hold_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert measured_linears(packed(3), 1) == []
    assert set_prefetching(packed(3), load_library()) == [0] * len(ROWS)


def test_no_more_weights_are_measured_than_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(tuning, "_LEAST_BYTES", 20_000)
    monkeypatch.setattr(tuning, "_READ_BYTES", 30_000)
    model = packed(5)
    assert measured_linears(model, 30_000) == list(model)[:3]
    assert set(set_prefetching(model, load_library())) <= set(DISTANCES)


@pytest.mark.parametrize(
    ("times", "best"),
    [
        pytest.param({0: [9, 9, 9], 4096: [8, 8, 8], 8192: [7.9, 7.9, 7.9]}, 4096, id="hardly better is not enough"),
        pytest.param({0: [9, 9, 9], 4096: [9, 9, 9], 8192: [8, 8, 8]}, 8192, id="the farthest"),
        pytest.param({0: [9, 9, 9], 4096: [10, 10, 10], 8192: [9, 9, 9]}, 0, id="prefetches slow down"),
        pytest.param({0: [18, 18, 7], 4096: [16, 16, 16], 8192: [16, 16, 16]}, 4096, id="one quick moment"),
        pytest.param({0: [9, 18, 27], 4096: [8, 16, 24], 8192: [9, 18, 27]}, 4096, id="others read more and more"),
    ],
)
def test_distances_are_compared_in_the_same_round(times: dict[int, list[float]], best: int) -> None:
    assert fastest(times) == best
