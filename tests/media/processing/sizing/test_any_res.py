"""Tiles of LLaVA-OneVision's images: sizes and patches as transformers computes them."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    LlavaNextImageProcessorPil,
    LlavaOnevisionImageProcessorPil,
    LlavaOnevisionProcessor,
    image_processing_utils,
    models,
)

from glimpse.engine.checkpoint.model_config.encoders import LlavaConfig, LlavaOneVisionConfig, VitConfig
from glimpse.media.errors import MediaError
from glimpse.media.processing.image import ImageProcessing, prepare_image
from glimpse.media.processing.sizing import any_res
from glimpse.media.processing.sizing.any_res import AnyRes

get_patch_output_size = image_processing_utils.get_patch_output_size
select_best_resolution = image_processing_utils.select_best_resolution
unpad_image = models.llava_onevision.modeling_llava_onevision.unpad_image

RESOLUTIONS = tuple((height, width) for height in range(384, 2305, 384) for width in range(384, 2305, 384))
SIZING = AnyRes(tile=384, tile_patches=27, resolutions=RESOLUTIONS)
VIT = VitConfig(
    width=32,
    intermediate_size=64,
    num_layers=1,
    num_heads=2,
    image_size=384,
    patch_size=14,
    activation="gelu_tanh",
    norm_eps=1e-6,
    class_token=False,
    patch_bias=True,
    pre_norm=False,
    post_norm=False,
)
ENCODER = LlavaOneVisionConfig(
    tower=LlavaConfig(vit=VIT, drops_first=False, projector_bias=True), resolutions=RESOLUTIONS, max_tiles=9
)
SMALL = tuple((height * 47, width * 47) for height in (1, 2, 3) for width in (1, 2, 4))
sides = st.integers(1, 5000)
sizes = st.tuples(sides, sides).filter(lambda size: max(size) <= 200 * min(size))


def random_image(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)


@given(size=sizes)
def test_sizes_are_those_of_the_reference(size: tuple[int, int]) -> None:
    plan = SIZING.plan(*size)
    tiles = plan.views[1]
    best = select_best_resolution(size, list(RESOLUTIONS))
    image = np.empty((3, *size), np.uint8)
    assert tiles.whole == best
    assert tiles.resized == get_patch_output_size(image, best, input_data_format="channels_first")
    rows, columns = best[0] // 384, best[1] // 384
    patches = unpad_image(torch.empty(1, 27 * rows, 27 * columns), size)
    assert plan.grid == (rows, columns, *patches.shape[1:])


def made_by(image: np.ndarray, *, is_alone: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns the pixels of an image, and those of the reference."""
    sizing = AnyRes(tile=47, tile_patches=3, resolutions=SMALL, padding=(122, 116, 104))
    processing = ImageProcessing(sizing=sizing).with_options(is_alone=is_alone)
    ours = prepare_image(PIL.Image.fromarray(image), processing)
    reference: Any = LlavaOnevisionImageProcessorPil(
        size={"height": 47, "width": 47},
        image_grid_pinpoints=[list(each) for each in SMALL],
        do_rescale=False,
        do_normalize=False,
    )
    images = [image] if is_alone else [image, image]
    return ours.pixels, np.moveaxis(reference([images], return_tensors="np").pixel_values[0], 1, -1)


@given(
    size=st.tuples(st.integers(5, 300), st.integers(5, 300)),  # the reference takes fewer rows for color channels
    is_alone=st.booleans(),
)
def test_pixels_are_those_of_the_reference(size: tuple[int, int], is_alone: bool) -> None:
    ours, expected = made_by(random_image(*size), is_alone=is_alone)
    assert np.array_equal(ours, expected)


@given(size=st.tuples(st.integers(5, 300), st.integers(5, 300)))
def test_pixels_among_others_are_those_of_llava_next(size: tuple[int, int]) -> None:
    image = random_image(*size)
    sizing = AnyRes(tile=47, tile_patches=3, resolutions=SMALL, tiles_several=True)
    processing = ImageProcessing(sizing=sizing).with_options(is_alone=False)
    ours = prepare_image(PIL.Image.fromarray(image), processing)
    reference: Any = LlavaNextImageProcessorPil(
        size={"shortest_edge": 47},
        crop_size={"height": 47, "width": 47},
        image_grid_pinpoints=[list(each) for each in SMALL],
        do_rescale=False,
        do_normalize=False,
    )
    expected = reference([image], return_tensors="np").pixel_values[0]
    assert np.array_equal(ours.pixels, np.moveaxis(expected, 1, -1))


def test_tiles_each_of_several_images_if_the_model_does() -> None:
    several = AnyRes(tile=47, tile_patches=3, resolutions=SMALL, tiles_several=True)
    assert several.among_others().plan(60, 200) == several.plan(60, 200)
    assert several.plan(60, 200).num_tiles > 1


def test_a_very_tall_image_is_padded_without_a_large_square(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(any_res, "MAX_SQUARE", 299)
    (first, _) = SIZING.among_others().plan(300, 40).views
    assert first.whole == (384, 300)
    ours, expected = made_by(random_image(300, 40), is_alone=False)
    assert np.abs(ours.astype(int) - expected.astype(int)).max() <= 1


@given(size=sizes)
def test_as_many_tokens_as_in_the_reference(size: tuple[int, int]) -> None:
    reference: Any = LlavaOnevisionProcessor
    processor = SimpleNamespace(
        num_image_tokens=729,
        vision_aspect_ratio="anyres_max_9",
        image_processor=SimpleNamespace(image_grid_pinpoints=[list(each) for each in RESOLUTIONS]),
    )
    processor._get_unpadded_features = lambda *sizes: reference._get_unpadded_features(processor, *sizes)
    expected = reference._get_number_of_features(processor, *size, 384, 384)
    assert ENCODER.num_image_tokens(SIZING.plan(*size).grid) == expected


@pytest.mark.parametrize("size", [(0, 5), (5, 0), (1, 3000), (3000, 1)])
def test_refuses_images_without_area_or_too_elongated(size: tuple[int, int]) -> None:
    with pytest.raises(MediaError):
        SIZING.plan(*size)
