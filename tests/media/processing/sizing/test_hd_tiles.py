"""Tiles of Phi-3.5-vision: sizes and pixels equal the reference's."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL.Image import Resampling

from glimpse.media.errors import MediaError, MediaOptionError
from glimpse.media.processing.image import ImageProcessing, prepare_image
from glimpse.media.processing.sizing.hd_tiles import HdTiles
from tests.media.images import scene
from tests.oracles.phi3v import hd_size, tiles_of

SIDES = st.one_of(st.integers(1, 40), st.integers(1, 4000), st.sampled_from([336, 672, 1344]))


@given(height=SIDES, width=SIDES, side=st.sampled_from([56, 336]), most=st.integers(1, 17))
def test_sizes_match_the_reference(height: int, width: int, side: int, most: int) -> None:
    sizing = HdTiles(tile=side, max_tiles=most)
    new_width, new_height = hd_size(max(height, width), min(height, width), side=side, most=most)
    if new_height < 1:
        with pytest.raises(MediaError, match=f"too elongated for the model, got {width}×{height} pixels"):
            sizing.plan(height, width)
        return
    plan = sizing.plan(height, width)
    (view,) = plan.views
    assert view.resized == ((new_width, new_height) if width < height else (new_height, new_width))
    assert plan.tile == (side, side)


@pytest.mark.parametrize(
    ("size", "most", "grid"),
    [
        ((336, 336), 4, (2, 2)),
        ((1000, 1000), 16, (4, 4)),
        ((1920, 1080), 16, (3, 5)),
        ((1080, 1920), 16, (5, 3)),
        ((1920, 1080), 4, (2, 2)),
        ((4000, 100), 16, (1, 16)),
        ((640, 480), 1, (1, 1)),
    ],
)
def test_published_tiles(size: tuple[int, int], most: int, grid: tuple[int, int]) -> None:
    width, height = size
    assert HdTiles(tile=336, max_tiles=most).plan(height, width).grid == grid


@settings(max_examples=25)
@given(width=st.integers(2, 260), height=st.integers(2, 260), most=st.integers(1, 6))
def test_pixels_equal_the_references(width: int, height: int, most: int) -> None:
    assume(max(width, height) < 50 * min(width, height))
    image = scene(width, height)
    sizing = HdTiles(tile=56, max_tiles=most)
    ours = prepare_image(image, ImageProcessing(sizing=sizing, resampling=Resampling.BILINEAR))
    expected, grid = tiles_of(image, side=56, most=most)
    assert ours.grid == grid
    difference = np.abs(ours.pixels.astype(int) - expected).max()
    # The reference transposes tall images to resize them. Then it rounds to 8 bits after the other side.
    assert difference <= (1 if width < height else 0)


def test_bounds_on_the_area_are_refused() -> None:
    with pytest.raises(MediaOptionError, match="the model decides the size in pixels"):
        HdTiles(tile=56, max_tiles=4).with_bounds(min_pixels=None, max_pixels=100_000)


def test_images_without_pixels_are_refused() -> None:
    with pytest.raises(MediaError, match="at least 1×1 pixels, got 3×0"):
        HdTiles(tile=56, max_tiles=4).plan(0, 3)
