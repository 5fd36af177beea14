"""M-RoPE positions, patches and encoder outputs match transformers."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.protocol.media import MediaSpan
from glimpse.engine.worker.layers.pixels import normalize
from glimpse.engine.worker.loading.load_engine import load_model
from glimpse.engine.worker.models.encoders.qwen2_vl_vision import VisionTower, cut_patches
from glimpse.engine.worker.models.qwen_vl import QwenVL, layout_prompt
from glimpse.media.kind import MediaKind
from tests.engine.harness import encode_of
from tests.oracles.qwen_vl import grids, image_processor, load_oracle, token_types

CPU = torch.device("cpu")
sides = st.integers(1, 6)


@st.composite
def media(draw: st.DrawFn) -> tuple[MediaKind, tuple[int, int, int]]:
    height, width = draw(sides), draw(sides)
    kind = draw(st.sampled_from([MediaKind.IMAGE, MediaKind.VIDEO]))
    num_frames = draw(st.integers(1, max(height, width))) if kind is MediaKind.VIDEO else 1
    return kind, (num_frames, 2 * height, 2 * width)


prompts = st.lists(st.tuples(st.integers(1, 5), media()), max_size=5)
"""Media with the number of text tokens before each."""


def make_spans(parts: list[tuple[int, tuple[MediaKind, tuple[int, int, int]]]]) -> tuple[MediaSpan, ...]:
    spans: list[MediaSpan] = []
    end = 0
    for num_text, (kind, grid) in parts:
        num_tokens = int(np.prod(grid)) // 4
        key = hashlib.sha256(bytes(grid)).digest()
        spans.append(MediaSpan(kind=kind, start=end + num_text, num_tokens=num_tokens, key=key, grid=grid))
        end = spans[-1].end
    return tuple(spans)


@given(parts=prompts, num_last=st.integers(1, 5))
def test_positions_match_transformers(
    tiny_checkpoint: Path, parts: list[tuple[int, tuple[MediaKind, tuple[int, int, int]]]], num_last: int
):
    spans = make_spans(parts)
    num_tokens = (spans[-1].end if spans else 0) + num_last
    layout = layout_prompt(num_tokens, spans, spatial_merge_size=2)
    positions, deltas = load_oracle(tiny_checkpoint).model.get_rope_index(
        torch.zeros(1, num_tokens, dtype=torch.long),
        token_types(num_tokens, spans),
        image_grid_thw=grids(spans, MediaKind.IMAGE),
        video_grid_thw=grids(spans, MediaKind.VIDEO),
    )
    assert layout.prompt_positions.tolist() == positions[:, 0].tolist()
    assert layout.delta == deltas.item()


def test_text_starts_after_the_last_frame_of_a_long_video():
    video = MediaSpan(kind=MediaKind.VIDEO, start=1, num_tokens=5, key=b"video", grid=(5, 2, 2))
    layout = layout_prompt(8, [video], spatial_merge_size=2)
    assert layout.prompt_positions.tolist() == [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [0, 1, 1, 1, 1, 1, 6, 7],
        [0, 1, 1, 1, 1, 1, 6, 7],
    ]
    assert layout.delta == 0


@pytest.fixture(scope="module")
def model(tiny_checkpoint: Path) -> QwenVL:
    config = load_model_config(tiny_checkpoint)
    model = load_model(tiny_checkpoint, config, CPU, torch.float32, lambda stage, fraction: None)
    assert isinstance(model, QwenVL)
    return model


@pytest.fixture(scope="module")
def tower(model: QwenVL) -> VisionTower:
    assert isinstance(model.encoder, VisionTower)
    return model.encoder


@pytest.mark.parametrize(("height", "width"), [(28, 28), (28, 140), (196, 56), (112, 112)])
def test_patches_match_transformers(tiny_checkpoint: Path, tower: VisionTower, height: int, width: int):
    image = np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    expected = image_processor(tiny_checkpoint)([image], return_tensors="pt")
    grid = (1, height // 14, width // 14)
    patches = normalize(cut_patches(memoryview(image.tobytes()), grid, tower.config, CPU), tower.statistics)
    assert expected["image_grid_thw"].tolist() == [list(grid)]
    assert (patches.flatten(1) - expected["pixel_values"]).abs().max() <= 1e-6


@pytest.mark.parametrize("num_frames", [3, 4])
def test_videos_are_encoded_frame_by_frame(tiny_checkpoint: Path, model: QwenVL, tower: VisionTower, num_frames: int):
    """An odd last frame is repeated."""
    frames = np.random.default_rng(0).integers(0, 256, (num_frames, 56, 84, 3), dtype=np.uint8)
    whole = np.concatenate([frames, frames[-1:]])[:4]
    patches = [
        normalize(cut_patches(memoryview(pair.tobytes()), (1, 4, 6), tower.config, CPU), tower.statistics).flatten(1)
        for pair in (whole[:2], whole[2:])
    ]
    with torch.inference_mode():
        [encoded] = model.encode([encode_of(memoryview(frames.tobytes()), (2, 4, 6), MediaKind.VIDEO)])
        expected = load_oracle(tiny_checkpoint).model.visual(torch.cat(patches), grid_thw=torch.tensor([[2, 4, 6]]))
    assert (encoded - expected.pooler_output).abs().max() <= 1e-5
