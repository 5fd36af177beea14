"""Image processing: equality with the reference, pixel bounds, checkpoint settings, and content keys."""

import json
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from transformers import Qwen2VLImageProcessorPil

from glimpse.media.containers.still import open_image
from glimpse.media.errors import MediaError, MediaErrorCode, MediaOptionError
from glimpse.media.processing.image import ImageProcessing, image_processing, prepare_image
from glimpse.media.processing.sizing.fixed_size import FixedSize
from glimpse.media.processing.sizing.recipe import Detail
from glimpse.media.processing.sizing.smart_resize import LARGEST_MAX_PIXELS, SmartResize
from tests.media.images import encode, scene
from tests.media.sizes import num_tokens, resized_by

QWEN2_VL = ImageProcessing(
    sizing=SmartResize(
        patch_size=14, merge_size=2, temporal_patch_size=2, min_pixels=4 * 28 * 28, max_pixels=1280 * 28 * 28
    )
)


def unpatched(values: np.ndarray[Any, Any], grid: tuple[int, ...], side: int = 14) -> np.ndarray[Any, Any]:
    """Converts the reference's patches to [height, width, 3] of the first frame."""
    _, rows, columns = grid
    patches = values.reshape(rows // 2, columns // 2, 2, 2, 3, 2, side, side)[:, :, :, :, :, 0]
    return patches.transpose(0, 2, 5, 1, 3, 6, 4).reshape(rows * side, columns * side, 3)


@pytest.mark.parametrize(
    ("width", "height"),
    [(1, 1), (3, 500), (28, 28), (57, 91), (101, 33), (224, 224), (333, 257), (640, 480), (1023, 767), (1400, 900)],
)
def test_pixels_and_grid_match_the_reference(width: int, height: int) -> None:
    image = scene(width, height)
    ours = prepare_image(image, QWEN2_VL)
    processor = Qwen2VLImageProcessorPil(do_rescale=False, do_normalize=False)
    theirs = processor(images=[image], return_tensors="np")
    assert tuple(theirs["image_grid_thw"][0]) == ours.grid
    np.testing.assert_array_equal(unpatched(theirs["pixel_values"], ours.grid), ours.pixels)


@pytest.mark.parametrize(("width", "height"), [(1, 1), (3, 500), (57, 91), (333, 257), (640, 480), (1400, 1100)])
def test_pixels_of_larger_patches_match_the_reference(width: int, height: int) -> None:
    """Qwen3-VL has such patches."""
    image = scene(width, height)
    bounds = {"shortest_edge": 64 * 32 * 32, "longest_edge": 1280 * 32 * 32}
    processor = Qwen2VLImageProcessorPil(patch_size=16, size=bounds, do_rescale=False, do_normalize=False)
    theirs = processor(images=[image], return_tensors="np")
    sizing = SmartResize(patch_size=16, min_pixels=64 * 32 * 32, max_pixels=1280 * 32 * 32)
    ours = prepare_image(image, ImageProcessing(sizing=sizing))
    assert tuple(theirs["image_grid_thw"][0]) == ours.grid
    np.testing.assert_array_equal(unpatched(theirs["pixel_values"], ours.grid, side=16), ours.pixels)


def test_greyscale_image_matches_the_reference() -> None:
    image = scene(90, 75).convert("L")
    theirs = Qwen2VLImageProcessorPil(do_rescale=False, do_normalize=False)(images=[image], return_tensors="np")
    ours = prepare_image(image, QWEN2_VL)
    np.testing.assert_array_equal(unpatched(theirs["pixel_values"], ours.grid), ours.pixels)


def test_pixels_are_contiguous_uint8_rgb() -> None:
    image = prepare_image(scene(300, 100), QWEN2_VL)
    assert (image.pixels.dtype, image.pixels.shape, image.grid) == (np.uint8, (112, 308, 3), (1, 8, 22))
    assert image.pixels.flags.c_contiguous
    assert len(image.key) == 32


def test_request_bounds_override_the_checkpoints() -> None:
    image = scene(640, 480)
    assert num_tokens(prepare_image(image, QWEN2_VL)) == 391
    assert num_tokens(prepare_image(image, QWEN2_VL, max_pixels=100 * 28 * 28)) <= 100
    assert num_tokens(prepare_image(image, QWEN2_VL, min_pixels=500 * 28 * 28)) >= 500
    assert (
        num_tokens(prepare_image(image, QWEN2_VL, min_pixels=2000 * 28 * 28)) >= 2000
    )  # overrides the default maximum
    assert num_tokens(prepare_image(image, QWEN2_VL, max_pixels=28 * 28)) == 1  # overrides the default minimum


@pytest.mark.parametrize(
    ("min_pixels", "max_pixels", "message"),
    [
        (5000, 4000, "'min_pixels': expected at most 'max_pixels' (4000), got 5000"),
        (0, None, f"'min_pixels': expected an integer from 1 to {LARGEST_MAX_PIXELS}, got 0"),
        (None, 0, f"'max_pixels': expected an integer from 1 to {LARGEST_MAX_PIXELS}, got 0"),
        (-3, None, f"'min_pixels': expected an integer from 1 to {LARGEST_MAX_PIXELS}, got -3"),
        (1 << 32, None, f"'min_pixels': expected an integer from 1 to {LARGEST_MAX_PIXELS}, got 4294967296"),
    ],
)
def test_refuses_invalid_bounds(min_pixels: int | None, max_pixels: int | None, message: str) -> None:
    with pytest.raises(MediaError) as caught:
        prepare_image(scene(9, 9), QWEN2_VL, min_pixels=min_pixels, max_pixels=max_pixels)
    assert (caught.value.code, caught.value.message) == (MediaErrorCode.INVALID_PARAMETER, message)


@given(
    width=st.integers(1, 300),
    height=st.integers(1, 300),
    bounds=st.tuples(st.integers(1, 200_000), st.integers(1, 200_000)).map(sorted),
)
def test_grid_pixels_and_tokens_agree(width: int, height: int, bounds: list[int]) -> None:
    if max(width, height) > 200 * min(width, height):
        return
    image = prepare_image(PIL.Image.new("RGB", (width, height)), QWEN2_VL, min_pixels=bounds[0], max_pixels=bounds[1])
    frames, rows, columns = image.grid
    assert (frames, rows % 2, columns % 2) == (1, 0, 0)
    assert image.pixels.shape == (rows * 14, columns * 14, 3)
    assert num_tokens(image) == rows * columns // 4 > 0


def write_config(folder: Path, **config: object) -> Path:
    (folder / "preprocessor_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("config", "min_pixels", "max_pixels"),
    [
        ({}, 3136, 1003520),
        ({"min_pixels": 3136, "max_pixels": 12845056}, 3136, 1003520),
        ({"size": {"shortest_edge": 3136, "longest_edge": 12845056}}, 3136, 1003520),
        ({"size": {"shortest_edge": 784, "longest_edge": 50176}}, 784, 50176),
        ({"size": {"min_pixels": 6272, "max_pixels": 50176}}, 6272, 50176),
        ({"min_pixels": 100, "size": {"shortest_edge": 784, "longest_edge": 50176}}, 100, 50176),
        ({"max_pixels": 784}, 784, 784),
    ],
)
def test_reads_the_bounds_of_a_checkpoint(
    tmp_path: Path, config: dict[str, object], min_pixels: int, max_pixels: int
) -> None:
    sizing = image_processing(write_config(tmp_path, **config)).sizing
    assert isinstance(sizing, SmartResize)
    assert (sizing.min_pixels, sizing.max_pixels) == (min_pixels, max_pixels)


def test_reads_a_config_saved_by_transformers(tmp_path: Path) -> None:
    Qwen2VLImageProcessorPil(patch_size=16, merge_size=3, temporal_patch_size=1).save_pretrained(tmp_path)
    assert image_processing(tmp_path) == resized_by(QWEN2_VL, patch_size=16, merge_size=3, temporal_patch_size=1)


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"patch_size": "14"}, "patch_size"),
        ({"patch_size": 0}, "patch_size"),
        ({"max_pixels": -1}, "max_pixels"),
        ({"size": {"longest_edge": 1.5}}, "max_pixels"),
        ({"resample": 2}, "bicubic"),
    ],
)
def test_refuses_unsupported_configs(tmp_path: Path, config: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        image_processing(write_config(tmp_path, **config))


def test_refuses_a_missing_or_invalid_config(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no preprocessor_config\.json"):
        image_processing(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        image_processing(tmp_path)


def key(image: PIL.Image.Image, processing: ImageProcessing = QWEN2_VL) -> bytes:
    return prepare_image(image, processing).key


def test_lossless_formats_have_the_same_key() -> None:
    image = scene(60, 50)
    files = [encode(image, "PNG"), encode(image, "BMP"), encode(image, "TIFF"), encode(image, "WEBP", lossless=True)]
    assert {key(PIL.Image.open(BytesIO(data))) for data in files} == {key(image)}


def test_one_bit_of_one_pixel_changes_the_key() -> None:
    image = scene(56, 56)
    other = image.copy()
    red, green, blue = scene(56, 56).getpixel((55, 55))  # pyright: ignore[reportGeneralTypeIssues] # RGB: a tuple
    other.putpixel((55, 55), (red, green, blue ^ 1))
    assert key(image) != key(other)


def test_shape_changes_the_key() -> None:
    values = np.arange(56 * 112 * 3, dtype=np.uint32).astype(np.uint8)
    assert key(PIL.Image.fromarray(values.reshape(56, 112, 3))) != key(PIL.Image.fromarray(values.reshape(112, 56, 3)))


def test_processing_changes_the_key() -> None:
    image = scene(112, 112)
    processings = [
        QWEN2_VL,
        resized_by(QWEN2_VL, temporal_patch_size=1),
        resized_by(QWEN2_VL, patch_size=28, merge_size=1),
        resized_by(QWEN2_VL, patch_size=28, merge_size=2),
        resized_by(QWEN2_VL, patch_size=7, merge_size=4),
    ]
    assert len({key(image, processing) for processing in processings}) == len(processings)


def test_keys_separate_adjacent_parameters() -> None:
    image = scene(84, 84)  # not resized by either processing
    fourteen_two, one_forty_two = QWEN2_VL, resized_by(QWEN2_VL, patch_size=1, merge_size=42)
    assert key(image, fourteen_two) != key(image, one_forty_two)


def test_bounds_without_effect_do_not_change_the_key() -> None:
    image = scene(112, 112)
    assert prepare_image(image, QWEN2_VL, max_pixels=112 * 112).key == key(image)


source_image = hnp.arrays(np.uint8, st.tuples(st.sampled_from([56, 84]), st.sampled_from([56, 84]), st.just(3)))


@given(source_image, source_image)
def test_keys_are_equal_only_for_equal_images(
    one: np.ndarray[Any, np.dtype[np.uint8]], other: np.ndarray[Any, np.dtype[np.uint8]]
) -> None:
    same_keys = key(PIL.Image.fromarray(one)) == key(PIL.Image.fromarray(other))
    assert same_keys == np.array_equal(one, other)


FAST = replace(QWEN2_VL, fast_jpeg=True)


@pytest.mark.parametrize("orientation", [1, 6])
def test_fast_jpeg_decoding_is_nearly_exact(orientation: int) -> None:
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    smooth = scene(300, 200).resize((2400, 1600))
    data = encode(smooth, "JPEG", quality=95, exif=exif.tobytes())
    exact, fast = (
        prepare_image(open_image(data, max_pixels=10_000_000), processing, max_pixels=300 * 784)
        for processing in (QWEN2_VL, FAST)
    )
    assert fast.grid == exact.grid
    difference = np.abs(fast.pixels.astype(int) - exact.pixels)
    assert 0 < difference.mean() < 2
    assert fast.key != exact.key


@pytest.mark.parametrize(
    ("width", "height", "file_format"), [(600, 400, "JPEG"), (2400, 1600, "PNG"), (30, 20, "JPEG")]
)
def test_fast_jpeg_option_does_not_change_other_images(width: int, height: int, file_format: str) -> None:
    data = encode(scene(width, height), file_format)
    exact, fast = (
        prepare_image(open_image(data, max_pixels=10_000_000), processing, max_pixels=200 * 784)
        for processing in (QWEN2_VL, FAST)
    )
    assert fast.key == exact.key


@pytest.mark.parametrize(("own", "asked", "expected"), [(448, None, 256), (672, None, 324), (672, 448, 256)])
def test_low_detail_only_lowers_the_bound(own: int, asked: int | None, expected: int) -> None:
    processing = resized_by(QWEN2_VL, max_pixels=own * own)
    low = processing.with_options(max_pixels=None if asked is None else asked * asked, detail=Detail.LOW)
    assert num_tokens(prepare_image(scene(1680, 1680), low)) == expected


@pytest.mark.parametrize(("bound", "asked", "expected"), [(None, None, 900), (448, None, 900), (None, 448, 256)])
def test_original_detail_has_the_checkpoint_s_bound(bound: int | None, asked: int | None, expected: int) -> None:
    processing = replace(resized_by(QWEN2_VL, max_pixels=(bound or 672) ** 2), checkpoint_max_pixels=840 * 840)
    original = processing.with_options(max_pixels=None if asked is None else asked * asked, detail=Detail.ORIGINAL)
    assert num_tokens(prepare_image(scene(1680, 1680), original)) == expected
    small = scene(280, 280)
    assert prepare_image(small, original).pixels.shape == (280, 280, 3)


@pytest.mark.parametrize(("side", "is_low"), [(384, True), (896, False)])
def test_low_detail_asks_nothing_of_a_model_with_small_images(side: int, is_low: bool) -> None:
    processing = ImageProcessing(sizing=FixedSize(side=side))
    if is_low:
        assert processing.with_options(detail=Detail.LOW) == processing
    else:
        with pytest.raises(MediaOptionError, match="'detail': expected 'auto' or 'high'"):
            processing.with_options(detail=Detail.LOW)


@pytest.mark.parametrize("orientation", [1, 6])
def test_a_large_jpeg_is_nearly_the_resized_full_decode(orientation: int) -> None:
    """20 million pixels, decoded at half of each side, which is still four times what the model sees."""
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    smooth = scene(300, 200).resize((5473, 3651), PIL.Image.Resampling.BICUBIC)
    data = encode(smooth, "JPEG", quality=95, exif=exif.tobytes())
    whole, reduced = (
        prepare_image(open_image(data, max_pixels=limit), QWEN2_VL, max_decoded_pixels=limit)
        for limit in (20_000_000, 19_000_000)
    )
    assert reduced.grid == whole.grid
    assert 0 < np.abs(reduced.pixels.astype(int) - whole.pixels).mean() < 2


def test_a_large_progressive_jpeg_is_refused() -> None:
    """A progressive JPEG's coefficients are all in memory."""
    words = "expected a JPEG of at most 10000 pixels, or 300000000 if it is not progressive, got 120×90"
    with pytest.raises(MediaError, match=words) as caught:
        open_image(encode(scene(120, 90), "JPEG", progressive=True), max_pixels=10_000)
    assert caught.value.code == MediaErrorCode.TOO_LARGE
    assert open_image(encode(scene(120, 90), "JPEG"), max_pixels=10_000)
    assert open_image(encode(scene(120, 90), "JPEG", progressive=True), max_pixels=10_800)
