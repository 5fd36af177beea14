"""Views of images: resized, cropped or padded, and cut into tiles, as NumPy and Pillow do it."""

import numpy as np
import PIL.Image
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL.Image import Resampling

from glimpse.media.processing.render import render
from glimpse.media.processing.sizing.views import ImagePlan, View

BICUBIC, LANCZOS = Resampling.BICUBIC, Resampling.LANCZOS
IMAGE = PIL.Image.fromarray(np.random.default_rng(0).integers(0, 256, (37, 53, 3), dtype=np.uint8))


def resized(image: PIL.Image.Image, height: int, width: int, resampling: Resampling = BICUBIC) -> np.ndarray:
    return np.asarray(image.resize((width, height), resampling))


@pytest.mark.parametrize("resampling", [BICUBIC, LANCZOS])
def test_plain_view_is_the_resized_image(resampling: Resampling) -> None:
    plan = ImagePlan(views=(View(resized=(20, 30)),), grid=())
    assert (plan.tile, plan.num_tiles) == ((20, 30), 1)
    np.testing.assert_array_equal(render(IMAGE, plan, resampling), resized(IMAGE, 20, 30, resampling))


@given(top=st.integers(-5, 25), left=st.integers(-5, 35), height=st.integers(1, 30), width=st.integers(1, 40))
def test_crop_and_padding_move_the_image(top: int, left: int, height: int, width: int) -> None:
    view = View(resized=(20, 30), size=(height, width), top=top, left=left)
    padded = np.pad(resized(IMAGE, 20, 30), ((40, 60), (40, 60), (0, 0)))
    expected = padded[40 + top : 40 + top + height, 40 + left : 40 + left + width]
    np.testing.assert_array_equal(render(IMAGE, ImagePlan(views=(view,), grid=()), BICUBIC), expected)


def test_tiles_are_in_rows_and_views_in_order() -> None:
    overview = View(resized=(8, 8))
    tiles = View(resized=(16, 20), size=(16, 24), left=-2, rows=2, columns=3)
    plan = ImagePlan(views=(overview, tiles), grid=(2, 3), is_tiled=True)
    pixels = render(IMAGE, plan, BICUBIC)
    assert (plan.tile, plan.num_tiles, pixels.shape) == ((8, 8), 7, (7, 8, 8, 3))
    np.testing.assert_array_equal(pixels[0], resized(IMAGE, 8, 8))
    whole = np.pad(resized(IMAGE, 16, 20), ((0, 0), (2, 2), (0, 0)))
    for index, tile in enumerate(pixels[1:]):
        row, column = divmod(index, 3)
        np.testing.assert_array_equal(tile, whole[8 * row : 8 * row + 8, 8 * column : 8 * column + 8])


def test_view_may_be_resized_from_another() -> None:
    first = View(resized=(30, 50), rows=0)
    tiles = View(resized=(16, 32), source=0, rows=2, columns=4)
    overview = View(resized=(8, 8), source=1)
    pixels = render(IMAGE, ImagePlan(views=(first, tiles, overview), grid=(), is_tiled=True), LANCZOS)
    large = PIL.Image.fromarray(resized(IMAGE, 30, 50, LANCZOS))
    middle = PIL.Image.fromarray(resized(large, 16, 32, LANCZOS))
    np.testing.assert_array_equal(pixels[5], np.asarray(middle)[8:, 8:16])
    np.testing.assert_array_equal(pixels[8], resized(middle, 8, 8, LANCZOS))
