"""Tiles of InternVL: arrangements and pixels equal the reference's."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GotOcr2ImageProcessorPil, models

from glimpse.media.errors import MediaError, MediaOptionError
from glimpse.media.processing.image import ImageProcessing, prepare_image
from glimpse.media.processing.sizing.aspect_tiles import AspectTiles
from tests.media.images import scene

get_optimal_tiled_canvas = models.got_ocr2.image_processing_pil_got_ocr2.get_optimal_tiled_canvas

PUBLISHED = AspectTiles(tile=448)
SIDES = st.one_of(st.integers(1, 40), st.integers(1, 6000), st.sampled_from([448, 896, 1344]))


@given(height=SIDES, width=SIDES, tile=st.sampled_from([56, 448]), counts=st.tuples(st.integers(1, 14), st.integers()))
def test_arrangements_match_the_reference(height: int, width: int, tile: int, counts: tuple[int, int]) -> None:
    most = counts[0]
    least = counts[1] % most + 1
    sizing = AspectTiles(tile=tile, min_tiles=least, max_tiles=most)
    plan = sizing.plan(height, width)
    columns, rows = get_optimal_tiled_canvas((height, width), (tile, tile), least, most)
    assert plan.grid == (rows, columns)


@pytest.mark.parametrize(
    ("size", "grid"),
    [
        ((448, 448), (1, 1)),
        ((1000, 1000), (2, 2)),
        ((3000, 3000), (3, 3)),
        ((4000, 1000), (2, 8)),
        ((50, 900), (12, 1)),
    ],
)
def test_published_tiles(size: tuple[int, int], grid: tuple[int, int]) -> None:
    width, height = size
    plan = PUBLISHED.plan(height, width)
    rows, columns = plan.grid
    assert (plan.tile, plan.num_tiles) == ((448, 448), 1 if rows * columns == 1 else rows * columns + 1)
    assert columns * grid[0] == rows * grid[1]


@settings(max_examples=20)
@given(width=st.integers(1, 260), height=st.integers(1, 260), most=st.integers(1, 12))
def test_pixels_equal_the_references(width: int, height: int, most: int) -> None:
    image = scene(width, height)
    processor: Any = GotOcr2ImageProcessorPil(size={"height": 44, "width": 44}, max_patches=most)
    values = processor([image], crop_to_patches=True, do_normalize=False, do_rescale=False)["pixel_values"]
    theirs = np.stack([np.asarray(value) for value in values]).transpose(0, 2, 3, 1)
    ours = prepare_image(image, ImageProcessing(sizing=AspectTiles(tile=44, max_tiles=most)))
    np.testing.assert_array_equal(ours.pixels, theirs)


def test_refuses_what_has_no_pixels_and_bounds_of_requests() -> None:
    with pytest.raises(MediaError, match="at least 1×1 pixels, got 5×0"):
        PUBLISHED.plan(0, 5)
    with pytest.raises(MediaOptionError, match="'min_pixels': expected none, since the model decides the size"):
        PUBLISHED.with_bounds(min_pixels=5, max_pixels=None)
