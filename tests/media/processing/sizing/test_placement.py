"""A box in what the model sees is the same box in the image file, through every recipe and orientation. The oracle is
where the colour of the box ends up in the pixels.
"""

from io import BytesIO

import numpy as np
import PIL.Image
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL.ExifTags import Base

from glimpse.media.processing.image import Image, ImageProcessing, ImageSizing, prepare_image
from glimpse.media.processing.sizing.adaptive_slices import AdaptiveSlices
from glimpse.media.processing.sizing.any_res import AnyRes
from glimpse.media.processing.sizing.aspect_tiles import AspectTiles
from glimpse.media.processing.sizing.fixed_size import FixedSize
from glimpse.media.processing.sizing.hd_tiles import HdTiles
from glimpse.media.processing.sizing.patches.flex_tiles import FlexTiles
from glimpse.media.processing.sizing.patches.longest_edge import LongestEdge
from glimpse.media.processing.sizing.patches.page_tiles import PageTiles
from glimpse.media.processing.sizing.smart_resize import SmartResize
from glimpse.media.processing.sizing.split_tiles import SplitTiles
from tests.media.images import encode

RECIPES: dict[str, ImageSizing] = {
    "resized": SmartResize(min_pixels=150 * 150, max_pixels=300 * 300),
    "longest edge": LongestEdge(longest_edge=300, patch_size=14, merge_size=2),
    "stretched": FixedSize(side=224),
    "cropped": FixedSize(side=168, shortest_edge=224),
    "tiles": AspectTiles(tile=112, max_tiles=6),
    "overview and slices": AdaptiveSlices(scale=140, max_slices=6),
    "tiles or none": FlexTiles(patch_size=14, tile=112, max_tiles=6, min_tokens=4, max_tokens=16),
    "pages in tiles": PageTiles(patch_size=14, side=140, tile=112, max_tiles=6),
    "padded pages": PageTiles(patch_size=14, side=224, tile=406),
    "tiles with padding": HdTiles(tile=112, max_tiles=6),
    "tiles and overview": SplitTiles(tile=112, longest_edge=336),
    "padded tiles": AnyRes(tile=112, tile_patches=8, resolutions=((112, 224), (224, 112), (224, 224))),
    "padded square": AnyRes(tile=224, tile_patches=8, resolutions=((224, 224),), is_alone=False),
}
"""Recipes that make small images."""
SIDES = st.integers(120, 400)


def whole(image: Image) -> np.ndarray:
    """Returns the largest view that the model sees, put together from its tiles."""
    plan = image.placement.plan
    views = [view for view in plan.views if view.num_tiles]
    largest = max(views, key=lambda view: view.whole[0] * view.whole[1])
    assert largest.whole == image.placement.shown
    start = sum(view.num_tiles for view in views[: views.index(largest)])
    pixels = image.pixels.reshape(-1, *plan.tile, 3)[start : start + largest.num_tiles]
    grid = pixels.reshape(largest.rows, largest.columns, *plan.tile, 3).swapaxes(1, 2)
    return grid.reshape(*largest.whole, 3)


@pytest.mark.parametrize("recipe", RECIPES)
@settings(max_examples=60)
@given(data=st.data(), width=SIDES, height=SIDES, orientation=st.integers(1, 8))
def test_boxes_map_back_to_the_file(
    recipe: str, data: st.DataObject, width: int, height: int, orientation: int
) -> None:
    left, top = data.draw(st.integers(0, width - 60)), data.draw(st.integers(0, height - 60))
    right, bottom = data.draw(st.integers(left + 60, width)), data.draw(st.integers(top + 60, height))
    file = PIL.Image.new("RGB", (width, height))
    file.paste((255, 0, 0), (left, top, right, bottom))
    file.getexif()[int(Base.Orientation)] = orientation
    image = prepare_image(file, ImageProcessing(sizing=RECIPES[recipe]))
    seen = whole(image)
    rows, columns = np.nonzero((seen[:, :, 0] > 127) & (seen[:, :, 1] < 127))
    (seen_left, seen_top), (seen_right, seen_bottom) = image.placement.seen
    expected = (max(left, seen_left), max(top, seen_top), min(right, seen_right), min(bottom, seen_bottom))
    if expected[0] > expected[2] - 2 or expected[1] > expected[3] - 2:
        return  # the crop leaves less of it than resizing blurs
    assert rows.size
    found = image.placement.box_to_source(
        ((float(columns.min()), float(rows.min())), (float(columns.max()) + 1, float(rows.max()) + 1))
    )
    # A pixel that the model sees is so large in the file.
    pixel = max((seen_right - seen_left) / seen.shape[1], (seen_bottom - seen_top) / seen.shape[0], 1)
    pixel = max(pixel, (seen_right - seen_left) / seen.shape[0], (seen_bottom - seen_top) / seen.shape[1])
    for (ours, theirs), end in zip(zip((*found[0], *found[1]), expected, strict=True), "abcd", strict=True):
        assert ours == pytest.approx(theirs, abs=1.01 * pixel), end


def test_only_a_crop_hides_a_part() -> None:
    for name, recipe in RECIPES.items():
        placement = prepare_image(PIL.Image.new("RGB", (300, 200)), ImageProcessing(sizing=recipe)).placement
        expected = ((75, 25), (225, 175)) if name == "cropped" else ((0, 0), (300, 200))
        assert np.asarray(placement.seen) == pytest.approx(np.asarray(expected), abs=1), name


@pytest.mark.parametrize("fast", [False, True])
def test_sizes_are_those_of_a_file_that_is_decoded_smaller(fast: bool) -> None:
    exif = PIL.Image.Exif()
    exif[int(Base.Orientation)] = 6
    data = encode(PIL.Image.new("RGB", (1600, 800)), "JPEG", exif=exif)
    image = prepare_image(
        PIL.Image.open(BytesIO(data)),
        ImageProcessing(sizing=RECIPES["resized"], fast_jpeg=fast),
        max_decoded_pixels=400_000,
    )
    source = image.placement.source
    assert (source.width, source.height, source.orientation) == (1600, 800, 6)
    assert source.upright == (1600, 800)
