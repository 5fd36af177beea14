"""Target sizes of images: a table, invariants, and comparison with the reference implementation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import models

from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.processing.sizing.smart_resize import SmartResize, smart_resize

reference = models.qwen2_vl.image_processing_pil_qwen2_vl.smart_resize


@pytest.mark.parametrize(
    ("height", "width", "max_pixels", "expected"),
    [
        (28, 28, 1003520, (56, 56)),  # too small: enlarged to the minimum area
        (1, 1, 1003520, (56, 56)),
        (1, 200, 1003520, (28, 812)),
        (224, 224, 1003520, (224, 224)),  # fits unchanged
        (230, 250, 1003520, (224, 252)),  # rounded to the nearest multiple
        (42, 70, 1003520, (56, 56)),  # halves round to even: 1.5 → 2, 2.5 → 2
        (1080, 1920, 1003520, (728, 1316)),  # too large: reduced
        (28, 5600, 3136, (28, 784)),  # still too large, but a side is at least one token
    ],
)
def test_smart_resize(height: int, width: int, max_pixels: int, expected: tuple[int, int]) -> None:
    assert smart_resize(height, width, factor=28, min_pixels=3136, max_pixels=max_pixels) == expected


side = st.integers(1, 6000)
pixel_bounds = st.tuples(st.integers(1, 2_000_000), st.integers(1, 2_000_000)).map(sorted)


@given(height=side, width=side, bounds=pixel_bounds, factor=st.sampled_from([8, 14, 28, 32]))
def test_sizes_match_the_reference(height: int, width: int, bounds: list[int], factor: int) -> None:
    low, high = bounds
    if max(height, width) > 200 * min(height, width):
        with pytest.raises(MediaError):
            smart_resize(height, width, factor=factor, min_pixels=low, max_pixels=high)
    else:
        ours = smart_resize(height, width, factor=factor, min_pixels=low, max_pixels=high)
        assert ours == reference(height, width, factor, low, high)


@given(height=st.integers(1, 20000), width=st.integers(1, 20000))
def test_sides_are_multiples_and_the_area_is_within_bounds(height: int, width: int) -> None:
    if max(height, width) > 200 * min(height, width):
        return
    new_height, new_width = smart_resize(height, width, factor=28, min_pixels=3136, max_pixels=1003520)
    assert new_height % 28 == new_width % 28 == 0
    assert min(new_height, new_width) >= 28
    # The area may exceed the maximum only if the short side is already one token.
    assert 3136 <= new_height * new_width <= 1003520 or min(new_height, new_width) == 28


@given(height=side, width=side, bounds=pixel_bounds)
def test_resizing_is_idempotent(height: int, width: int, bounds: list[int]) -> None:
    if max(height, width) > 100 * min(height, width):
        return
    low, high = min(bounds[0], 3136), max(bounds[1], 3136)
    once = smart_resize(height, width, factor=28, min_pixels=low, max_pixels=high)
    if low <= once[0] * once[1] <= high:
        assert smart_resize(*once, factor=28, min_pixels=low, max_pixels=high) == once


@pytest.mark.parametrize(("height", "width"), [(0, 0), (0, 5), (5, 0)])
def test_refuses_images_without_pixels(height: int, width: int) -> None:
    with pytest.raises(MediaError, match="at least 1×1 pixels") as caught:
        smart_resize(height, width, factor=28, min_pixels=3136, max_pixels=1003520)
    assert caught.value.code == MediaErrorCode.INVALID_MEDIA


def test_refuses_extreme_aspect_ratios() -> None:
    smart_resize(1, 200, factor=28, min_pixels=3136, max_pixels=1003520)
    with pytest.raises(MediaError, match="10000×1") as caught:
        smart_resize(1, 10000, factor=28, min_pixels=3136, max_pixels=1003520)
    assert caught.value.code == MediaErrorCode.INVALID_MEDIA


@pytest.mark.parametrize("slim", ["enlarges_slim", "rounds_slim"])
def test_the_error_tells_the_size_that_was_sent(slim: str) -> None:
    sizing = SmartResize(**{slim: True})
    with pytest.raises(MediaError, match="at most 200:1, got 300×1 pixels"):
        sizing.plan(1, 300)
