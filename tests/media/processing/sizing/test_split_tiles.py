"""Tiles of Idefics3 and SmolVLM: sizes and pixels equal the reference's."""

from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL.Image import Resampling
from transformers import SmolVLMImageProcessorPil, models

from glimpse.media.errors import MediaError, MediaErrorCode, MediaOptionError
from glimpse.media.processing.image import ImageProcessing, prepare_image
from glimpse.media.processing.sizing.split_tiles import SplitTiles
from glimpse.media.processing.sizing.square_frames import SquareFrames
from glimpse.media.processing.video import VideoProcessing, make_video
from tests.media.images import scene

get_resize_output_image_size = models.smolvlm.image_processing_pil_smolvlm.get_resize_output_image_size

PUBLISHED = SplitTiles(tile=512, longest_edge=2048)
SIDES = st.one_of(st.integers(1, 40), st.integers(1, 6000))


class SizesOnly(SmolVLMImageProcessorPil):
    """The reference, of which only the sizes of images are wanted."""

    sizes: ClassVar[list[tuple[int, int]]] = []

    def resize(self, image: Any, size: Any, resample: Any = None, **_: Any) -> Any:
        longest = size.longest_edge
        found = get_resize_output_image_size(image, longest) if longest else (size.height, size.width)
        if 0 in found:
            raise ZeroDivisionError
        self.sizes.append(found)
        return np.broadcast_to(np.uint8(0), (3, *found))


def reference(sizing: SplitTiles, height: int, width: int) -> tuple[list[tuple[int, int]], tuple[int, int]]:
    """Returns the sizes to which the reference resizes an image one after the other, and its rows and columns."""
    options: Any = {
        "size": {"longest_edge": sizing.longest_edge},
        "max_image_size": {"longest_edge": sizing.tile},
        "do_image_splitting": sizing.split,
        "return_row_col_info": True,
        "do_normalize": False,
        "do_pad": False,
    }
    processor: Any = SizesOnly(**options)
    SizesOnly.sizes.clear()
    result = processor.preprocess([[np.broadcast_to(np.uint8(0), (3, height, width))]], **options)
    return list(SizesOnly.sizes), (result["rows"][0][0], result["cols"][0][0])


@given(
    height=SIDES,
    width=SIDES,
    tile=st.sampled_from([16, 56, 364, 384, 512]),
    tiles=st.integers(1, 12),
    split=st.booleans(),
)
def test_sizes_and_tiles_match_the_reference(height: int, width: int, tile: int, tiles: int, split: bool) -> None:
    sizing = SplitTiles(tile=tile, longest_edge=tiles * tile, split=split)
    plan = sizing.plan(height, width)
    try:
        sizes, grid = reference(sizing, height, width)
    except ZeroDivisionError:  # the reference rounds a side to nothing
        return
    assert plan.grid == grid
    assert [size for view in plan.views for size in (view.through, view.resized) if size is not None] == sizes


@pytest.mark.parametrize(("size", "grid"), [((100, 100), (4, 4)), ((4000, 1000), (1, 4)), ((1000, 3000), (4, 2))])
def test_published_tiles(size: tuple[int, int], grid: tuple[int, int]) -> None:
    width, height = size
    plan = PUBLISHED.plan(height, width)
    assert (plan.grid, plan.tile, plan.num_tiles) == (grid, (512, 512), grid[0] * grid[1] + 1)


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("resampling", [Resampling.LANCZOS, Resampling.BICUBIC])
@pytest.mark.parametrize("size", [(1, 1), (300, 7), (61, 200), (44, 44), (90, 89), (352, 176)])
def test_pixels_equal_the_references(size: tuple[int, int], resampling: Resampling, split: bool) -> None:
    image = scene(*size)
    options: Any = {"do_normalize": False, "do_rescale": False, "do_image_splitting": split}
    processor: Any = SmolVLMImageProcessorPil(
        size={"longest_edge": 176}, max_image_size={"longest_edge": 44}, resample=resampling
    )
    theirs = np.asarray(processor([[image]], **options)["pixel_values"][0]).transpose(0, 2, 3, 1)
    sizing = SplitTiles(tile=44, longest_edge=176, split=split)
    ours = prepare_image(image, ImageProcessing(sizing=sizing, resampling=resampling))
    np.testing.assert_array_equal(ours.pixels, theirs)


def test_frames_become_what_images_without_tiles_become() -> None:
    frames = [scene(90, 50, seed) for seed in range(2)]
    sizing = SquareFrames(tile=44, longest_edge=44)
    processing = VideoProcessing(sizing=sizing, resampling=Resampling.LANCZOS)
    video = make_video(frames, 2, processing, frame_seconds=(), fps=None)
    assert (video.pixels.shape, video.grid) == ((2, 44, 44, 3), (2,))
    alone = ImageProcessing(sizing=SplitTiles(tile=44, longest_edge=44, split=False), resampling=Resampling.LANCZOS)
    for frame, pixels in zip(frames, video.pixels, strict=True):
        np.testing.assert_array_equal(prepare_image(frame, alone).pixels[0], pixels)


def test_refuses_what_has_no_pixels_and_what_is_too_large() -> None:
    with pytest.raises(MediaError, match="at least 1×1 pixels, got 5×0"):
        PUBLISHED.plan(0, 5)
    frames = SquareFrames(tile=512, longest_edge=512)
    with pytest.raises(MediaError, match="at least 1×1 pixels, got 0×5"):
        frames.plan(1, 5, 0)
    with pytest.raises(MediaError, match="at most 98 frames, got 99") as caught:
        frames.plan(99, 5, 5)
    assert caught.value.code is MediaErrorCode.TOO_LARGE
    assert frames.plan(98, 5, 5).resized == (512, 512)


def test_bounds_of_requests_are_refused_by_name() -> None:
    with pytest.raises(MediaOptionError, match="'max_pixels': expected none, since the model decides the size"):
        PUBLISHED.with_bounds(min_pixels=None, max_pixels=5)
