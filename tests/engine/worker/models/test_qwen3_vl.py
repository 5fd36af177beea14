"""Qwen3-VL: logits and greedy answers match transformers, with DeepStack, interleaved M-RoPE and time stamps."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.worker.loading.load_engine import load_model
from glimpse.engine.worker.models.encoders.qwen2_vl_vision import placed_positions
from glimpse.engine.worker.models.qwen_vl import layout_prompt
from glimpse.engine.worker.native.library import Level
from glimpse.media.kind import MediaKind
from tests.checkpoints.files import write_json
from tests.checkpoints.quantized import WeightFormat, quantize_checkpoint
from tests.checkpoints.qwen3_vl import make_qwen3_vl_checkpoint
from tests.checkpoints.refusals import refused
from tests.engine.harness import Harness, encode_of
from tests.engine.levels import at_outer_levels, needs_kernels
from tests.engine.qwen3_vl_prompts import make_qwen3_prompt
from tests.engine.worker.models.steps import AccurateSteps, agreement
from tests.oracles.qwen_vl import greedy_answer, grids, load_oracle, token_types

CHECKPOINT = make_qwen3_vl_checkpoint
NUM_TOKENS = 8
PROMPTS = {
    "text": make_qwen3_prompt(1, 23),
    "image": make_qwen3_prompt(2, 5, (96, 64), 9),
    "images": make_qwen3_prompt(3, 3, (32, 32), 1, (64, 224), 1, (288, 32), 4),
    "video": make_qwen3_prompt(4, 5, (5, 96, 64), 9),
    "long video": make_qwen3_prompt(5, (12, 32, 64), 3),
    "all": make_qwen3_prompt(6, 3, (4, 64, 96), 2, (96, 64), 1, (2, 32, 128), 4, (64, 64), 6),
}


assert_agrees = agreement(greedy_answer, "spans", "images")


class TestSteps(AccurateSteps):
    agrees = staticmethod(assert_agrees)
    divided, accurate, cached = "all", "all", ("video",)
    blocks = (1, 2, 3)


@pytest.mark.parametrize("flat_names", [False, True])
def test_stored_names(tmp_path: Path, flat_names: bool) -> None:
    path = make_qwen3_vl_checkpoint(tmp_path / "own", seed=7, tied=False, flat_names=flat_names)
    published = make_qwen3_vl_checkpoint(tmp_path / "published", seed=7, tied=False)
    harness = Harness(path)
    assert_agrees(harness.answer(harness.begin(PROMPTS["image"]), NUM_TOKENS), published)


@needs_kernels
@at_outer_levels
def test_float32_on_native_kernels_matches_transformers(checkpoint: Path, level: Level) -> None:
    harness = Harness(checkpoint, level=level, block_size=32)
    assert_agrees(harness.answer(harness.begin(PROMPTS["all"]), NUM_TOKENS), checkpoint)


@pytest.mark.parametrize("method", ["awq", "gptq", "fp8", "fp8 blocks"])
def test_quantized_checkpoints(checkpoint: Path, tmp_path: Path, method: str) -> None:
    quantized, dequantized = quantize_checkpoint(checkpoint, tmp_path, WeightFormat(method=method))
    plain = Harness(checkpoint, quantization="fp8") if method == "fp8" else Harness(dequantized)
    found, expected = (
        torch.stack(each.answer(each.begin(PROMPTS["image"]), 2).logits) for each in (Harness(quantized), plain)
    )
    assert (found - expected).abs().max() <= 1e-4


@pytest.mark.parametrize("sides", [(32, 32), (96, 160), (128, 128), (64, 224), (192, 96)])
@torch.inference_mode()
def test_encoder_outputs_match_transformers(checkpoint: Path, sides: tuple[int, int]) -> None:
    image = np.random.default_rng(sides).integers(0, 256, (*sides, 3), dtype=np.uint8)
    model = load_model(
        checkpoint, load_model_config(checkpoint), torch.device("cpu"), torch.float32, lambda stage, fraction: None
    )
    grid = (1, sides[0] // 16, sides[1] // 16)
    (encoded,) = model.encode([encode_of(memoryview(image.tobytes()), grid)])
    pixels = torch.from_numpy(image).permute(2, 0, 1).float() / 127.5 - 1
    patches = pixels.view(3, 1, grid[1] // 2, 2, 16, grid[2] // 2, 2, 16).expand(-1, 2, *[-1] * 6)
    patches = patches.permute(2, 5, 3, 6, 0, 1, 4, 7).reshape(grid[1] * grid[2], -1)
    expected = load_oracle(checkpoint).model.visual(patches, grid_thw=torch.tensor([grid]))
    rows = torch.cat([expected.pooler_output, *expected.deepstack_features], dim=1)
    assert (encoded - rows).abs().max() <= 1e-5


@given(grid_h=st.integers(1, 12), grid_w=st.integers(1, 12), side=st.integers(1, 9))
def test_positions_are_interpolated_like_images(grid_h: int, grid_w: int, side: int) -> None:
    table = torch.randn(side**2, 4)
    learned = table.view(1, side, side, 4).permute(0, 3, 1, 2)
    expected = functional.interpolate(learned, (2 * grid_h, 2 * grid_w), mode="bilinear", align_corners=True)
    squares = expected[0].view(4, grid_h, 2, grid_w, 2).permute(1, 3, 2, 4, 0).reshape(-1, 4)
    found = placed_positions(table, (3, 2 * grid_h, 2 * grid_w), 2, mode="bilinear", align_corners=True)
    assert torch.allclose(found, squares.repeat(3, 1), atol=1e-5)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 99),
    media=st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 5)) | st.tuples(*[st.integers(1, 5)] * 3), min_size=1, max_size=3
    ),
)
def test_positions_match_transformers(checkpoint: Path, seed: int, media: list[tuple[int, ...]]) -> None:
    sizes: list[Any] = [(*frames, 32 * height, 32 * width) for *frames, height, width in media]
    prompt = make_qwen3_prompt(seed, 2, *sizes, 3)
    num_tokens = len(prompt.token_ids)
    layout = layout_prompt(num_tokens, prompt.spans, spatial_merge_size=2)
    positions, deltas = load_oracle(checkpoint).model.get_rope_index(
        torch.tensor([prompt.token_ids]),
        token_types(num_tokens, prompt.spans),
        image_grid_thw=grids(prompt.spans, MediaKind.IMAGE),
        video_grid_thw=grids(prompt.spans, MediaKind.VIDEO),
    )
    assert layout.prompt_positions.tolist() == positions[:, 0].tolist()
    assert layout.delta == int(deltas)


def test_reads_rotary_fields_as_transformers_5_writes_them(tmp_path: Path, checkpoint: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    text = config["text_config"]
    text["rope_parameters"] = text.pop("rope_scaling") | {"rope_theta": text.pop("rope_theta")}
    write_json(tmp_path / "config.json", config)
    assert load_model_config(tmp_path).text == load_model_config(checkpoint).text


test_refuses_unsupported_configurations = refused(
    ({"text_config": {"hidden_act": "gelu"}}, "'text_config.hidden_act': expected 'silu', got 'gelu'"),
    ({"text_config": {"attention_bias": True}}, "'text_config.attention_bias': expected False, got True"),
    (
        {"text_config": {"rope_scaling": {"rope_type": "yarn", "mrope_section": [6, 5, 5]}}},
        "'text_config.rope_scaling.rope_type': expected 'default', got 'yarn'",
    ),
    ({"vision_config": {"hidden_act": "gelu"}}, "'vision_config.hidden_act': expected 'gelu_pytorch_tanh'"),
    ({"vision_config": {"num_position_embeddings": 35}}, "expected a square number, got 35"),
    ({"vision_config": {"deepstack_visual_indexes": [2, 0]}}, "expected ascending indices of the 3 blocks"),
    ({"vision_config": {"out_hidden_size": 32}}, "expected the decoder's hidden_size 64, got 32"),
)
