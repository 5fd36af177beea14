"""Qwen3-VL with a mixture of experts: logits and greedy answers match transformers, on every kind of weights."""

from functools import partial
from pathlib import Path

import pytest
import torch

from glimpse.engine.protocol.config import Quantization
from glimpse.engine.worker.native.library import Level
from tests.checkpoints.qwen3_vl import make_qwen3_vl_checkpoint
from tests.engine.harness import Harness
from tests.engine.levels import assert_stays_near_float32, at_outer_levels, needs_kernels
from tests.engine.worker.models.steps import Steps
from tests.engine.worker.models.test_qwen3_vl import NUM_TOKENS, PROMPTS, assert_agrees

CHECKPOINT = partial(make_qwen3_vl_checkpoint, experts=True)


class TestSteps(Steps):
    agrees = staticmethod(assert_agrees)
    divided, cached = "all", ("video",)
    blocks = (2,)


@needs_kernels
@at_outer_levels
def test_float32_on_native_kernels_matches_transformers(checkpoint: Path, level: Level) -> None:
    harness = Harness(checkpoint, level=level, block_size=32)
    assert_agrees(harness.answer(harness.begin(PROMPTS["all"]), NUM_TOKENS), checkpoint)


@needs_kernels
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_native_kernels_stay_near_float32(checkpoint: Path, quantization: Quantization) -> None:
    prompts = [PROMPTS["text"], PROMPTS["images"]]
    assert_stays_near_float32(checkpoint, prompts, torch.bfloat16, quantization=quantization, tolerance=0.1)
