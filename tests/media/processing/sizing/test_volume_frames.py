"""Sizes of frames under a bound on their volume: equal to Qwen3-VL's formula, and with a request's bounds."""

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glimpse.media.errors import MediaError
from glimpse.media.processing.sizing.volume_frames import VolumeFrames, volume_resize

# Not from `transformers`, which has a placeholder where torchvision is missing.
_reference: Any = import_module("transformers.models.qwen3_vl.video_processing_qwen3_vl")
Qwen3VLVideoProcessor, smart_resize = _reference.Qwen3VLVideoProcessor, _reference.smart_resize

PUBLISHED = VolumeFrames(min_volume=4096, max_volume=25_165_824)


@given(
    num_frames=st.integers(2, 768),
    height=st.integers(1, 2500),
    width=st.integers(1, 2500),
    bounds=st.tuples(st.integers(1, 10**6), st.integers(1, 3 * 10**7)).map(sorted),
)
def test_sizes_match_the_reference(num_frames: int, height: int, width: int, bounds: list[int]) -> None:
    options = {"factor": 32, "min_volume": bounds[0], "max_volume": bounds[1]}
    try:
        expected = smart_resize(num_frames, height, width, factor=32, min_pixels=bounds[0], max_pixels=bounds[1])
    except ValueError:
        with pytest.raises(MediaError, match="aspect ratio"):
            volume_resize(num_frames, height, width, depth=2, **options)
    else:
        assert volume_resize(num_frames, height, width, depth=2, **options) == expected


@given(num_frames=st.integers(2, 768), height=st.integers(32, 1200), width=st.integers(32, 1200))
def test_caps_of_frames_match_the_reference(num_frames: int, height: int, width: int) -> None:
    capped = VolumeFrames(min_volume=4096, max_volume=25_165_824, max_frame_tokens=768)
    reference: Any = SimpleNamespace(
        size={"shortest_edge": 4096, "longest_edge": 25_165_824},
        patch_size=16,
        merge_size=2,
        temporal_patch_size=2,
        cap_pixels_per_frame=True,
        max_video_tokens=768,
    )
    num_patches = Qwen3VLVideoProcessor.get_num_of_video_patches(reference, num_frames, height, width)
    grid_t, grid_h, grid_w = capped.grid(num_frames, *capped.plan(num_frames, height, width).resized)
    assert grid_t * grid_h * grid_w == num_patches


@pytest.mark.parametrize(
    ("bounds", "size"),
    [
        ({}, (320, 640)),
        ({"max_pixels": 64 * 128}, (64, 128)),
        ({"min_pixels": 640 * 1280}, (640, 1280)),
        ({"total_pixels": 2 * 160 * 320}, (160, 320)),
        ({"min_pixels": 640 * 1280, "total_pixels": 2 * 160 * 320}, (640, 1280)),
    ],
)
def test_honors_the_bounds_of_a_request(bounds: dict[str, int], size: tuple[int, int]) -> None:
    none = dict.fromkeys(("min_pixels", "max_pixels", "total_pixels"))
    assert PUBLISHED.with_bounds(**none | bounds).plan(4, 320, 640).resized == size


def test_a_single_frame_counts_as_the_two_of_a_patch() -> None:
    assert PUBLISHED.plan(1, 320, 640) == PUBLISHED.plan(2, 320, 640)
    assert PUBLISHED.grid(1, 320, 640) == (1, 20, 40)


def test_refuses_frames_that_are_too_large_in_total() -> None:
    bounds = PUBLISHED.with_bounds(min_pixels=16384 * 28 * 28, max_pixels=None, total_pixels=None)
    with pytest.raises(MediaError, match="sample fewer frames"):
        bounds.plan(100, 320, 640)
