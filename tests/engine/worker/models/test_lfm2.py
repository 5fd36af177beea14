"""LFM2-VL: logits, greedy answers, sizes of images and prompts are those of transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glimpse.engine.checkpoint.families.registry import family_of, load_model_config
from glimpse.engine.checkpoint.families.token_layout import LayoutContext
from glimpse.engine.checkpoint.model_config.encoders import FlexVisionConfig
from glimpse.engine.checkpoint.model_config.model import read_json
from glimpse.engine.checkpoint.text.media_inputs import read_media
from glimpse.engine.checkpoint.text.tokenizer import load_tokenizer
from glimpse.media.kind import MediaKind
from glimpse.media.processing.image import ImageProcessing, prepare_image
from glimpse.media.processing.sizing.patches.flex_tiles import FlexTiles
from tests.checkpoints.files import write_changed_config, write_json
from tests.checkpoints.lfm2 import MAX_ROWS, PATCH, TILE, TOKEN_IDS, make_lfm2_vl_checkpoint
from tests.checkpoints.refusals import refused
from tests.engine.harness import Harness, PlacedMedium, Prompt, prompt_with
from tests.engine.worker.models.steps import LevelSteps, agreement
from tests.media.images import scene
from tests.oracles.lfm2 import greedy_answer, grid_of, resized, text_of, tiles_of

CHECKPOINT = make_lfm2_vl_checkpoint
SIDE = TILE // PATCH


def make_prompt(seed: int, *parts: int | tuple[int, int, int, int]) -> Prompt:
    """Returns a prompt of numbers of text tokens, and of images: rows and columns of tiles, and of patches of an
    overview."""

    def place(random: np.random.Generator, part: tuple[int, int, int, int]) -> PlacedMedium:
        rows, columns, own_rows, own_columns = part
        sizes = [SIDE**2] * (rows * columns) + [own_rows * own_columns] * (own_rows > 0)
        tokens, runs = list[int](), list[tuple[int, int]]()
        for size in sizes:
            tokens.append(TOKEN_IDS["<|img_thumbnail|>"])
            runs.append((len(tokens), size // 4))
            tokens += [TOKEN_IDS["<image>"]] * (size // 4)
        return PlacedMedium(
            token_ids=tokens,
            kind=MediaKind.IMAGE,
            grid=(rows, columns, SIDE if rows else 0, own_rows, own_columns),
            content=random.integers(0, 256, (sum(sizes), PATCH, PATCH, 3), dtype=np.uint8),
            runs=tuple(runs),
        )

    return prompt_with(seed, parts, place)


PROMPTS = {
    "text": make_prompt(1, 60),
    "image": make_prompt(2, 5, (0, 0, 4, 6), 9),
    "images": make_prompt(3, 3, (2, 1, 4, 8), 1, (0, 0, 2, 14), 1, (1, 2, 0, 0), 4),
}


assert_agrees = agreement(greedy_answer, "spans", "images")


class TestSteps(LevelSteps):
    agrees = staticmethod(assert_agrees)
    divided, cached = "images", ("image", "images")


def test_a_projection_without_a_norm(tmp_path: Path) -> None:
    path = make_lfm2_vl_checkpoint(tmp_path, projector_norm=False)
    harness = Harness(path)
    assert_agrees(harness.answer(harness.begin(PROMPTS["images"]), 3), path)


def test_first_published_files_say_the_same(tmp_path: Path, checkpoint: Path, processing: ImageProcessing) -> None:
    path = make_lfm2_vl_checkpoint(tmp_path, as_first_published=True)
    assert load_model_config(path) == load_model_config(checkpoint)
    assert read_media(path, load_model_config(path)).images == processing


SIZINGS = (FlexTiles(), FlexTiles(has_overview=False), FlexTiles(max_tiles=4, min_tokens=32, max_tokens=64))


@given(height=st.integers(1, 4000), width=st.integers(1, 4000), sizing=st.sampled_from(SIZINGS))
def test_sizes_of_images_are_those_of_the_reference(height: int, width: int, sizing: FlexTiles) -> None:
    if max(height, width) <= 200 * min(height, width):
        plan = sizing.plan(height, width)
        assert plan.grid == grid_of(height, width, sizing)
        rows, columns, side, *own = plan.grid
        assert plan.num_tiles == rows * columns * side**2 + own[0] * own[1]


@settings(max_examples=10)
@given(width=st.integers(20, 260), height=st.integers(20, 260))
def test_pixels_are_those_of_the_reference(processing: ImageProcessing, width: int, height: int) -> None:
    image = prepare_image(scene(width, height), processing)
    rows, columns, side, own_rows, own_columns = image.grid
    whole = resized(np.asarray(scene(width, height)), rows * side * PATCH, columns * side * PATCH) if rows else None
    *tiles, overview = (joined(tile) for tile in tiles_of(image.pixels, image.grid))
    expected = resized(np.asarray(scene(width, height)), own_rows * PATCH, own_columns * PATCH)
    # Each of the two passes of a resizer rounds by itself.
    assert abs(overview.astype(int) - expected).max() <= 2
    for index, tile in enumerate(tiles):
        assert whole is not None
        row, column = TILE * (index // columns), TILE * (index % columns)
        assert abs(tile.astype(int) - whole[row : row + TILE, column : column + TILE]).max() <= 2


def joined(patches: np.ndarray) -> np.ndarray:
    """Returns the image of rows and columns of patches."""
    rows, columns = patches.shape[:2]
    return patches.swapaxes(1, 2).reshape(rows * PATCH, columns * PATCH, 3)


@pytest.mark.parametrize(("width", "height"), [(40, 30), (300, 90), (200, 200)])
def test_text_of_images_is_that_of_the_reference(
    checkpoint: Path, processing: ImageProcessing, width: int, height: int
) -> None:
    config, tokenizer = load_model_config(checkpoint), load_tokenizer(checkpoint)
    image = prepare_image(scene(width, height), processing)
    layout = family_of(config).layout(image, LayoutContext(model=config, encode=tokenizer.encode))
    assert layout.token_ids(TOKEN_IDS["<image>"]) == tokenizer.encode(text_of(image.grid))
    assert image.grid[0] <= MAX_ROWS


def test_layers_that_older_documents_leave_out_are_not_computed(tmp_path: Path, checkpoint: Path) -> None:
    write_changed_config(tmp_path, read_json(checkpoint / "config.json"), vision_feature_layer=-2)
    assert load_model_config(tmp_path).encoder_as(FlexVisionConfig).vit.num_layers == 1


def test_images_of_low_detail_are_not_cut() -> None:
    plan = FlexTiles().low_detail().plan(3000, 2000)
    assert plan.grid == (0, 0, 0, 38, 26)


test_refuses_unsupported_configurations = refused(
    ({"projector_hidden_act": "silu"}, "'projector_hidden_act': expected 'gelu', got 'silu'"),
    ({"vision_config": {"model_type": "siglip"}}, "expected 'siglip2_vision_model', got 'siglip'"),
    ({"text_config": {"conv_bias": True}}, "'conv_bias': expected False, got True"),
    ({"text_config": {"layer_types": ["mamba"] * 4}}, "expected full_attention or conv, got 'mamba'"),
    ({"text_config": {"layer_types": ["conv"] * 4}}, "expected both full_attention and conv, got 'conv' alone"),
)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"min_tiles": 1}, r"'min_tiles': expected a number from 2 to 'max_tiles' \(6\), got 1"),
        ({"tile_size": 70}, "'tile_size': expected a multiple of 16, got 70"),
        ({"use_image_special_tokens": False}, "'use_image_special_tokens': expected True, got False"),
        ({"downsample_factor": 4}, "'downsample_factor': expected 2, got 4"),
        ({"resample": 0}, r"'resample': expected 1 \(Lanczos\), 2 \(bilinear\) or 3 \(bicubic\), got 0"),
    ],
)
def test_refuses_unsupported_processing(tmp_path: Path, checkpoint: Path, fields: dict[str, Any], message: str) -> None:
    write_json(tmp_path / "preprocessor_config.json", read_json(checkpoint / "preprocessor_config.json") | fields)
    with pytest.raises(ValueError, match=message):
        read_media(tmp_path, load_model_config(checkpoint))
