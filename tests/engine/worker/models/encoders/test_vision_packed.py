"""Packed encoding of images and videos matches encoding one at a time."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.core.plan import Encode
from glimpse.engine.worker.loading.load_engine import load_model
from glimpse.engine.worker.models.encoders.qwen2_vl_vision import by_frame_size
from glimpse.engine.worker.models.qwen_vl import QwenVL
from glimpse.engine.worker.native.backend import use_native
from glimpse.engine.worker.native.library import Level
from tests.checkpoints.qwen2_vl import make_checkpoint
from tests.engine.harness import encode_of
from tests.engine.levels import OUTER_LEVELS

Grid = tuple[int, int, int]

grids = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from([2, 4, 6]), st.sampled_from([2, 4, 10])), min_size=1, max_size=6
)


def random_medium(grid: Grid, *, seed: int, is_image: bool) -> Encode:
    grid_t, grid_h, grid_w = grid
    num_frames = 1 if is_image and grid_t == 1 else 2 * grid_t - seed % 2  # the last frame may be missing
    shape = (num_frames, 14 * grid_h, 14 * grid_w, 3)
    return encode_of(memoryview(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8).tobytes()), grid)


@pytest.fixture(scope="module", params=["qwen2_vl", "qwen2_5_vl"])
def checkpoint(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint"), family=request.param)


@pytest.fixture(
    scope="module",
    params=[
        (None, torch.float32),
        *((level, dtype) for level in OUTER_LEVELS for dtype in (torch.bfloat16, torch.float32)),
    ],
    ids=str,
)
def model(checkpoint: Path, request: pytest.FixtureRequest) -> QwenVL:
    level: Level | None
    dtype: torch.dtype
    level, dtype = request.param
    config = load_model_config(checkpoint)
    model = load_model(checkpoint, config, torch.device("cpu"), dtype, lambda stage, fraction: None)
    assert isinstance(model, QwenVL)
    if level is not None:
        model.ops = use_native(model, level, dtype)
    return model


@settings(max_examples=20)
@given(grids=grids, are_images=st.booleans())
@torch.inference_mode()
def test_packed_encoding_matches_separate_encoding(model: QwenVL, grids: list[Grid], are_images: bool):
    media = [random_medium(grid, seed=index, is_image=are_images) for index, grid in enumerate(grids)]
    together = model.encode(media)
    for medium, output, (grid_t, grid_h, grid_w) in zip(media, together, grids, strict=True):
        [alone] = model.encode([medium])
        assert output.shape == alone.shape == (grid_t * grid_h * grid_w // 4, alone.shape[1])
        error = (output.float() - alone.float()).abs().max()
        assert error < (1e-5 if output.dtype is torch.float32 else 0.02) * max(1.0, alone.float().abs().max().item())


@torch.inference_mode()
def test_outputs_do_not_share_memory(model: QwenVL):
    outputs = model.encode([random_medium((1, 4, 4), seed=seed, is_image=True) for seed in range(3)])
    assert [len(output.untyped_storage()) for output in outputs] == [output.nbytes for output in outputs]


def test_orders_media_by_frame_size():
    assert by_frame_size([(1, 4, 4), (2, 2, 4), (1, 2, 8), (3, 4, 2), (1, 6, 6)]) == [0, 2, 1, 3, 4]
