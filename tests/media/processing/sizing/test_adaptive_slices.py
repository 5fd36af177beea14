"""Slices of MiniCPM-V 2.6: arrangements, sizes and pixels equal the reference's."""

import numpy as np
import PIL.Image
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glimpse.media.errors import MediaError, MediaOptionError
from glimpse.media.processing.image import ImageProcessing, prepare_image
from glimpse.media.processing.sizing.adaptive_slices import AdaptiveSlices
from glimpse.media.processing.sizing.recipe import MAX_ASPECT_RATIO
from tests.media.images import scene
from tests.oracles.minicpmv import grid_of, slices_of

PUBLISHED = AdaptiveSlices()
SIDES = st.one_of(st.integers(1, 40), st.integers(1, 4000), st.sampled_from([448, 896, 1344]))


@given(height=SIDES, width=SIDES, scale=st.sampled_from([56, 448]), most=st.integers(1, 12))
def test_arrangements_match_the_reference(height: int, width: int, scale: int, most: int) -> None:
    sizing = AdaptiveSlices(scale=scale, max_slices=most)
    if max(height, width) > MAX_ASPECT_RATIO * min(height, width):
        with pytest.raises(MediaError, match="an aspect ratio of at most 200:1"):
            sizing.plan(height, width)
        return
    plan = sizing.plan(height, width)
    assert plan.grid[2:4] == grid_of(PIL.Image.new("1", (width, height)), scale=scale, most=most)
    assert plan.tile == (14, 14)


@pytest.mark.parametrize(
    ("size", "grid", "largest"),
    [
        ((448, 448), (32, 32, 0, 0, 0, 0), (448, 448)),
        ((100, 100), (32, 32, 0, 0, 0, 0), (448, 448)),
        ((1000, 1000), (32, 32, 2, 2, 32, 32), (448, 448)),
        ((3000, 1000), (18, 55, 2, 4, 26, 39), (364, 546)),
    ],
)
def test_published_slices(size: tuple[int, int], grid: tuple[int, ...], largest: tuple[int, int]) -> None:
    width, height = size
    plan = PUBLISHED.plan(height, width)
    assert plan.grid == grid
    assert plan.num_tiles == grid[0] * grid[1] + grid[2] * grid[3] * grid[4] * grid[5]
    # The overview is a tile beside the slices.
    assert PUBLISHED.tiles((plan.num_tiles, 14, 14, 3), grid) == (1 + grid[2] * grid[3], largest)


@settings(max_examples=25)
@given(width=st.integers(2, 260), height=st.integers(2, 260), most=st.integers(1, 12))
def test_pixels_equal_the_references(width: int, height: int, most: int) -> None:
    image = scene(width, height)
    ours = prepare_image(image, ImageProcessing(sizing=AdaptiveSlices(scale=56, max_slices=most)))
    overview, *slices = slices_of(image, scale=56, most=most)
    own_rows, own_columns, rows, columns, slice_rows, slice_columns = ours.grid
    assert rows * columns == len(slices)
    assert (joined(ours.pixels[: own_rows * own_columns], own_rows, own_columns) == overview).all()
    if slices:
        whole = joined(ours.pixels[own_rows * own_columns :], rows * slice_rows, columns * slice_columns)
        lines = [np.concatenate(slices[row * columns : (row + 1) * columns], axis=1) for row in range(rows)]
        assert (whole == np.concatenate(lines)).all()


def joined(patches: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Returns the image of these patches, row by row."""
    return patches.reshape(rows, columns, 14, 14, 3).swapaxes(1, 2).reshape(rows * 14, columns * 14, 3)


def test_bounds_on_the_area_are_refused() -> None:
    with pytest.raises(MediaOptionError, match="the model decides the size in pixels"):
        PUBLISHED.with_bounds(min_pixels=None, max_pixels=100_000)


@pytest.mark.parametrize(("width", "height"), [(0, 3), (201, 1), (1, 201)])
def test_degenerate_images_are_refused(width: int, height: int) -> None:
    with pytest.raises(MediaError, match="expected"):
        PUBLISHED.plan(height, width)
