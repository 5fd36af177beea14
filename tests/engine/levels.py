"""The instruction set levels of native kernels that this machine can run, and what holds at each of them."""

from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from glimpse.engine.protocol.config import Quantization
from glimpse.engine.worker.native.library import Level, NativeError, machine_levels
from tests.engine.harness import Harness, Prompt


def _levels() -> list[Level]:
    try:
        return machine_levels()
    except NativeError:
        return []


LEVELS = _levels()
needs_kernels = pytest.mark.skipif(not LEVELS, reason="this machine cannot build or run the native kernels")
at_each_level = pytest.mark.parametrize("level", LEVELS)


def assert_stays_near_float32(
    checkpoint: Path,
    prompts: Iterable[Prompt],
    dtype: torch.dtype,
    *,
    quantization: Quantization = "none",
    tolerance: float,
) -> None:
    """Compares each level's logits after a prompt with those of torch in float32, computed with the same weights.

    What the weights lose when they are quantized is not the kernels' error: with weights as small as those of tests it
    is more than all that kernels round.

    Args:
        checkpoint: The checkpoint's folder.
        prompts: The prompts.
        dtype: The data type that the kernels compute in.
        quantization: Scheme of the decoder's layers, for both.
        tolerance: The bound of the root mean square of the differences, as a share of the logits' standard deviation.
    """
    exact = Harness(checkpoint, quantization=quantization)
    expected = [(prompt, exact.answer(exact.begin(prompt), 1).logits[0]) for prompt in prompts]
    for level in LEVELS:
        native = Harness(checkpoint, dtype, level=level, quantization=quantization, block_size=32)
        for prompt, logits in expected:
            difference = native.answer(native.begin(prompt), 1).logits[0] - logits
            assert difference.square().mean().sqrt() < tolerance * logits.std(), level
