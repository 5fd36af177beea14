"""Images of one fixed size: pixels as CLIP's and SigLIP's image processors in transformers make them."""

from typing import Any

import numpy as np
import PIL.Image
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import CLIPImageProcessorPil, SiglipImageProcessorPil

from glimpse.media.errors import MediaError, MediaOptionError
from glimpse.media.processing.image import ImageProcessing, prepare_image
from glimpse.media.processing.sizing.fixed_size import FixedSize
from glimpse.media.processing.sizing.square_frames import SquareFrames
from glimpse.media.processing.sizing.views import View

SIDE = 56
RAW: dict[str, Any] = {"do_rescale": False, "do_normalize": False}
sides = st.integers(1, 300)
sizes = st.tuples(sides, sides).filter(lambda size: max(size) <= 200 * min(size))


def random_image(height: int, width: int) -> PIL.Image.Image:
    return PIL.Image.fromarray(np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8))


@given(size=sizes, shortest_edge=st.sampled_from([56, 57, 70]))
def test_pixels_are_those_of_the_reference_after_a_crop(size: tuple[int, int], shortest_edge: int) -> None:
    image = random_image(*size)
    reference: Any = CLIPImageProcessorPil(
        size={"shortest_edge": shortest_edge}, crop_size={"height": SIDE, "width": SIDE}, **RAW
    )
    sizing = FixedSize(side=SIDE, shortest_edge=shortest_edge)
    ours = prepare_image(image, ImageProcessing(sizing=sizing))
    expected = np.moveaxis(reference([image], return_tensors="np").pixel_values[0], 0, -1)
    assert np.array_equal(ours.pixels, expected)
    assert ours.grid == (1, 1)


@given(size=sizes)
def test_pixels_are_those_of_the_reference_when_stretched(size: tuple[int, int]) -> None:
    image = random_image(*size)
    reference: Any = SiglipImageProcessorPil(size={"height": SIDE, "width": SIDE}, resample=3, **RAW)
    ours = prepare_image(image, ImageProcessing(sizing=FixedSize(side=SIDE)))
    expected = np.moveaxis(reference([image], return_tensors="np").pixel_values[0], 0, -1)
    assert np.array_equal(ours.pixels, expected)


@pytest.mark.parametrize("size", [(0, 5), (5, 0), (1, 201), (201, 1)])
def test_refuses_images_without_area_or_too_elongated(size: tuple[int, int]) -> None:
    with pytest.raises(MediaError):
        FixedSize(side=SIDE, shortest_edge=SIDE).plan(*size)


@pytest.mark.parametrize("bound", ["min_pixels", "max_pixels"])
def test_refuses_bounds_by_name(bound: str) -> None:
    bounds: dict[str, Any] = {bound: 1000}
    with pytest.raises(MediaOptionError, match=bound):
        ImageProcessing(sizing=FixedSize(side=SIDE)).with_options(**bounds)


def test_frames_are_stretched_at_once_and_their_number_is_limited() -> None:
    sizing = SquareFrames(tile=384, longest_edge=None)
    assert sizing.plan(174, 480, 640) == View(resized=(384, 384))
    assert sizing.grid(174, 384, 384) == (174,)
    with pytest.raises(MediaError, match="at most 174 frames, got 175"):
        sizing.plan(175, 480, 640)
