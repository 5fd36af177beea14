"""MiniCPM-V 4.6: logits, greedy answers, and sizes and pixels of slices are those of transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.model_config.encoders import MergedVisionConfig
from glimpse.engine.checkpoint.model_config.model import read_json
from glimpse.engine.checkpoint.text.media_inputs import read_media
from glimpse.media.kind import MediaKind
from glimpse.media.processing.frame_sampling import InstantSampling
from glimpse.media.processing.image import ImageProcessing, prepare_image
from glimpse.media.processing.sizing.adaptive_slices import AdaptiveSlices
from tests.checkpoints.files import write_changed_config, write_json
from tests.checkpoints.minicpmv4_6 import PREPROCESSOR, SCALE, TOKEN_IDS, VIDEO, make_minicpmv4_6_checkpoint
from tests.checkpoints.refusals import refused
from tests.engine.harness import PlacedMedium, Prompt, prompt_with
from tests.engine.worker.models.steps import LevelSteps, agreement
from tests.media.images import scene
from tests.oracles.minicpmv4_6 import greedy_answer, processed, slices_of

CHECKPOINT = make_minicpmv4_6_checkpoint
TOKEN_SIDE = 4
"""Patches along each side of a token."""


def make_prompt(seed: int, *parts: int | tuple[int, ...]) -> Prompt:
    """Returns a prompt of numbers of text tokens, of images and of videos: the grid of `AdaptiveSlices` or of
    `ScaledFrames` with tokens in place of patches. A mark stands before the placeholders of each slice."""

    def place(random: np.random.Generator, grid: tuple[int, ...]) -> PlacedMedium:
        kind = MediaKind.VIDEO if len(grid) == 3 else MediaKind.IMAGE
        if kind is MediaKind.VIDEO:
            num_frames, rows, columns = list(grid)
            sizes, grid = [rows * columns] * num_frames, (num_frames, *(TOKEN_SIDE * each for each in grid[1:]))
            shape = (num_frames, 8 * grid[1], 8 * grid[2], 3)
        else:
            own_rows, own_columns, rows, columns, *of_slice = list(grid)
            sizes = [own_rows * own_columns] + [of_slice[0] * of_slice[1]] * (rows * columns)
            grid = (TOKEN_SIDE * own_rows, TOKEN_SIDE * own_columns, rows, columns, *(TOKEN_SIDE * n for n in of_slice))
            shape = (sum(sizes) * TOKEN_SIDE**2, 8, 8, 3)
        tokens, runs = list[int](), list[tuple[int, int]]()
        for size in sizes:
            tokens.append(TOKEN_IDS["<slice>"])
            runs.append((len(tokens), size))
            tokens += [TOKEN_IDS[f"<|{kind.value}_pad|>"]] * size
        content = random.integers(0, 256, shape, dtype=np.uint8)
        return PlacedMedium(token_ids=tokens, kind=kind, grid=grid, content=content, runs=tuple(runs))

    return prompt_with(seed, parts, place)


PROMPTS = {
    "text": make_prompt(1, 60),
    "image": make_prompt(2, 5, (2, 3, 0, 0, 0, 0), 9),
    "images": make_prompt(3, 3, (2, 2, 2, 1, 1, 3), 1, (1, 4, 0, 0, 0, 0), 1, (3, 1, 1, 2, 2, 2), 4),
    "video": make_prompt(4, 5, (3, 2, 1), 2, (1, 1, 0, 0, 0, 0), 3),
}


class TestSteps(LevelSteps):
    agrees = staticmethod(agreement(greedy_answer, "spans", "images"))
    divided, cached = "images", ("image", "images")


@settings(max_examples=15)
@given(width=st.integers(2, 300), height=st.integers(2, 300), most=st.integers(1, 12))
def test_pixels_of_slices_are_those_of_the_reference(width: int, height: int, most: int) -> None:
    sizing = AdaptiveSlices(scale=SCALE, patch_size=8, merge_size=TOKEN_SIDE, max_slices=most)
    image = scene(width, height)
    ours = prepare_image(image, ImageProcessing(sizing=sizing))
    slices, grid = processed(image, max_slice_nums=most)
    assert ours.grid[2:4] == grid
    for found, expected in zip(slices_of(ours.pixels, ours.grid), slices, strict=True):
        assert found.shape == expected.shape
        assert (found == expected).all()


def test_processors_are_read_where_transformers_5_writes_them(tmp_path: Path, checkpoint: Path) -> None:
    path = make_minicpmv4_6_checkpoint(tmp_path, as_saved=True)
    found = read_media(path, load_model_config(path))
    assert found == read_media(checkpoint, load_model_config(checkpoint))
    assert found.videos is not None
    assert found.videos.sampling == InstantSampling(max_frames_at_rate=VIDEO["max_num_frames"])


def test_weights_are_bfloat16_if_nothing_says_so(tmp_path: Path, checkpoint: Path) -> None:
    config = read_json(checkpoint / "config.json")
    for part in (config, config["text_config"]):
        part.pop("dtype", None)
    write_json(tmp_path / "config.json", config)
    assert load_model_config(tmp_path).dtype == "bfloat16"


def test_patches_are_merged_after_the_layer_that_the_document_names(tmp_path: Path, checkpoint: Path) -> None:
    write_changed_config(tmp_path, read_json(checkpoint / "config.json"), insert_layer_id=2)
    assert load_model_config(tmp_path).encoder_as(MergedVisionConfig).num_layers_before == 3


test_refuses_unsupported_configurations = refused(
    ({"downsample_mode": "4x"}, "'downsample_mode': expected '16x', got '4x'"),
    ({"merger_times": 2}, "'merger_times': expected 1, got 2"),
    ({"insert_layer_id": -1}, "'insert_layer_id': expected one of 3 layers, got -1"),
    ({"vision_config": {"model_type": "siglip"}}, "expected 'minicpmv4_6_vision', got 'siglip'"),
    ({"vision_config": {"window_kernel_size": [4, 4]}}, r"expected \[2, 2\], got \[4, 4\]"),
)


@pytest.mark.parametrize(
    ("images", "videos", "message"),
    [
        ({"downsample_mode": "4x"}, {}, "preprocessor_config.json: 'downsample_mode': expected '16x', got '4x'"),
        ({"slice_mode": False}, {}, "'slice_mode': expected True, got False"),
        ({}, {"stack_frames": 4}, "video_preprocessor_config.json: 'stack_frames': expected 1, got 4"),
    ],
)
def test_refuses_other_processing(
    tmp_path: Path, checkpoint: Path, images: dict[str, Any], videos: dict[str, Any], message: str
) -> None:
    write_json(tmp_path / "preprocessor_config.json", PREPROCESSOR | images)
    write_json(tmp_path / "video_preprocessor_config.json", VIDEO | videos)
    with pytest.raises(ValueError, match=message):
        read_media(tmp_path, load_model_config(checkpoint))
