"""The kernels for ARM, under emulation: the bits of x86-64 where sums are exact, and nearly its sums elsewhere."""

from collections.abc import Iterator
from ctypes import CDLL, c_int, c_int64, c_void_p
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from PIL import Image
from PIL.Image import Resampling
from torch import Tensor

from glimpse.engine.worker.layers.group_quantized import GroupQuantizedLinear
from glimpse.engine.worker.layers.linear import Int8Linear, Linear
from glimpse.engine.worker.layers.low_rank import AdaptedRows, LowRankUpdate, LowRankUpdatePart
from glimpse.engine.worker.native import attention, library
from glimpse.engine.worker.native.compile_kernels import KERNELS
from glimpse.engine.worker.native.library import Level, choose_level, load_library, machine_levels
from glimpse.engine.worker.native.linear import PackedLinear, WeightMemory
from glimpse.engine.worker.native.low_rank import PackedAdapters
from glimpse.engine.worker.native.native_ops import NativeOps
from glimpse.engine.worker.tensors.batch import AdapterRows
from glimpse.media.native import library as media
from glimpse.media.native.compile_resampler import KERNELS as RESAMPLER
from glimpse.media.native.library import RESAMPLINGS, Resizer, ResizerLevel
from tests.checkpoints.text import make_text_checkpoint
from tests.engine.harness import make_prompt
from tests.engine.levels import LEVELS, assert_stays_near_float32, needs_kernels
from tests.engine.quantized import quantized
from tests.engine.worker.native import emulator, test_native_groups
from tests.engine.worker.native.emulator import needs_emulator
from tests.engine.worker.native.test_native_linear import exact, make, rows
from tests.engine.worker.native.test_native_programs import assert_bits_agree, decode_step, load
from tests.media.processing.test_resize import expected, random_pixels, resize_with

pytestmark = [needs_kernels, needs_emulator]
ARM = [Level.NEON, Level.NEON_DOTPROD, Level.NEON_I8MM, Level.NEON_BF16]
OF_MODELS = [Level.NEON, Level.NEON_DOTPROD, Level.NEON_BF16]
"""In float32 the last one has the kernels of `NEON_I8MM`."""


@pytest.fixture(scope="module")
def arm() -> Iterator[CDLL]:
    """The library for ARM."""
    with emulator.start("max", KERNELS, library.DECLARATIONS.functions()) as emulated:
        yield emulated


@pytest.fixture
def on_arm(arm: CDLL) -> Iterator[None]:
    """What loads the kernels gets those for ARM."""
    with patch.object(library, "_open", lambda _path: arm), patch.object(attention, "_kernels", lambda: arm):
        yield


@pytest.mark.usefixtures("on_arm")
def test_level_is_the_fastest_of_the_processor():
    assert machine_levels() == ARM
    assert choose_level() is ARM[-1]
    functions = library.DECLARATIONS.functions()
    with emulator.start("cortex-a72", KERNELS, functions) as older, patch.object(library, "_open", lambda _path: older):
        assert machine_levels() == ARM[:1]


@pytest.mark.parametrize(
    ("bits", "group_size", "byte_inputs"),
    [(4, 32, False), (4, 64, False), (8, 16, False), (8, 32, False), (8, 128, False), (8, 128, True)],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_products_in_groups_have_the_bits_of_other_processors(
    arm: CDLL, dtype: torch.dtype, bits: int, group_size: int, byte_inputs: bool
):
    has_minimum = group_size == 64
    linear = test_native_groups.make(256, 70, group_size, bits=bits, has_minimum=has_minimum, byte_inputs=byte_inputs)
    for num_rows in (1, 2, 3, 9, 17):
        found, expected = products(arm, linear, rows(num_rows, 256, dtype))
        assert all(torch.equal(each, expected) for each in found)


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_other_products_are_nearly_those_of_other_processors(arm: CDLL, dtype: torch.dtype, int8: bool):
    made = make(Linear(900, 70, bias=True), 0, dtype)
    linear, x = quantized(made) if int8 else made, rows(40, 900, dtype)
    whole, expected = products(arm, linear, x)
    for each in whole:
        torch.testing.assert_close(each, expected, rtol=0, atol=5e-6)
    for num_rows in (1, 7):
        found, _ = products(arm, linear, x[:num_rows])
        assert all(torch.equal(few, all_rows[:num_rows]) for few, all_rows in zip(found, whole, strict=True))


def products(arm: CDLL, linear: Linear | Int8Linear | GroupQuantizedLinear, x: Tensor) -> tuple[list[Tensor], Tensor]:
    """Returns the products of each level of ARM, and that of this machine."""

    def product(library: CDLL, level: Level) -> Tensor:
        memory = WeightMemory(library)
        native = PackedLinear(linear, gated=False, library=library, level=level, memory=memory, dtype=x.dtype)
        return native.compute(x, None, None, torch.float32)

    return [product(arm, level) for level in ARM], product(load_library(), LEVELS[0])


@pytest.mark.parametrize(
    ("level", "dtype", "tolerance"),
    [(Level.NEON, torch.float32, 1e-4), (Level.NEON_BF16, torch.bfloat16, 2**-8)],
    ids=str,
)
def test_adapters_change_linears_as_on_torch(arm: CDLL, level: Level, dtype: torch.dtype, tolerance: float):
    made = make(Linear(100, 70, bias=True), 0, dtype)
    linear = PackedLinear(made, gated=False, library=arm, level=level, memory=WeightMemory(arm), dtype=dtype)
    x, down, up = rows(5, 100, dtype), rows(6, 100, dtype, 2), rows(70, 6, dtype, 3)
    part = LowRankUpdatePart(ranks=slice(0, 6), outputs=slice(0, 70), up=up)
    adapters = PackedAdapters(1)
    adapters.put(b"", {linear: LowRankUpdate(down=down, parts=[part])})
    y = adapters.ops(NativeOps(arm, level), AdaptedRows([AdapterRows(1, 4, 0)])).linear_add(x, linear, None)
    expected = exact(made, x)
    inner = (x[1:].double() @ down.T.double()).to(dtype)
    expected[1:] += inner.double() @ up.T.double()
    torch.testing.assert_close(y.double(), expected, rtol=tolerance, atol=1e-4)


@pytest.mark.usefixtures("on_arm")
@pytest.mark.parametrize("family", ["qwen3_5 moe", "lfm2"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.05), (torch.float32, 1e-4)], ids=str)
def test_models_stay_near_float32(tmp_path: Path, family: str, dtype: torch.dtype, tolerance: float):
    """Attention and rotary embedding, gated delta nets, short convolutions, experts and activations."""
    checkpoint = make_text_checkpoint(tmp_path / "model", family)
    assert_stays_near_float32(checkpoint, [make_prompt(7, 70)], dtype, tolerance=tolerance, levels=OF_MODELS)


@pytest.mark.usefixtures("on_arm")
def test_recorded_steps_have_the_bits_of_others(tiny_checkpoint: Path, tmp_path: Path):
    with_states = load(make_text_checkpoint(tmp_path / "model", "qwen3_5 moe"))
    assert_bits_agree(with_states, [decode_step([1, 65, 300, 2], 7, keeps_states=True)])
    assert_bits_agree(load(tiny_checkpoint, quantization="int4"), [decode_step([1, 65, 300, 2], 7)])


@pytest.mark.parametrize("resampling", sorted(RESAMPLINGS))
def test_images_are_resized_to_pillows_bytes(resampling: Resampling):
    resize = [c_int, c_int, c_void_p, c_int64, c_int64, c_int64, c_void_p, c_int64, c_int64]
    functions = [("glimpse_resize_level", [], c_int), ("glimpse_resize", resize, c_int)]
    with emulator.start("max", RESAMPLER, functions) as resampler:
        with patch.object(media.ctypes, "CDLL", lambda _path: resampler):
            resizer = Resizer(Path("resampler"))
        assert resizer.level is ResizerLevel.NEON
        for source, wanted in (((50, 70), (33, 90)), ((90, 41), (7, 20)), ((1, 5), (3, 2))):
            image = Image.fromarray(random_pixels(source, seed=1, harsh=True))
            assert np.array_equal(resize_with(resizer, image, wanted, resampling), expected(image, wanted, resampling))
