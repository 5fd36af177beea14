"""Frames of MiniCPM-V: sizes and pixels equal the reference's, times those of the published script."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glimpse.media.errors import MediaError, MediaErrorCode, MediaOptionError
from glimpse.media.processing.sizing.scaled_frames import ScaledFrames, temporal_id
from glimpse.media.processing.video import VideoProcessing, make_video
from tests.media.images import scene
from tests.oracles.minicpmv import slices_of

PUBLISHED = ScaledFrames(max_packed=3)


@settings(max_examples=25)
@given(width=st.integers(2, 260), height=st.integers(2, 260))
def test_frames_become_what_images_without_slices_become(width: int, height: int) -> None:
    frames = [scene(width, height, seed) for seed in range(2)]
    processing = VideoProcessing(sizing=ScaledFrames(scale=56))
    video = make_video(frames, 2, processing, frame_seconds=(), fps=None)
    for frame, pixels in zip(frames, video.pixels, strict=True):
        np.testing.assert_array_equal(pixels, slices_of(frame, scale=56, most=1)[0])
    assert video.grid == (2, video.pixels.shape[1] // 14, video.pixels.shape[2] // 14)
    assert processing.sizing.fits(*video.pixels.shape[:3])


@given(index=st.integers(0, 60_000), rate=st.sampled_from([23.976, 24.0, 25.0, 29.97, 30.0]))
def test_temporal_ids_are_those_of_the_published_script(index: int, rate: float) -> None:
    seconds = index / rate
    instants = np.arange(0, seconds + 1, 0.1)
    nearest = instants[np.abs(instants - seconds).argmin()]
    distances = np.sort(np.abs(instants - seconds))
    if distances[1] - distances[0] > 1e-9:  # not in the middle of two
        assert temporal_id(seconds) == np.int32(nearest / 0.1)


@pytest.mark.parametrize(("num_frames", "packed"), [(1, 1), (180, 1), (181, 2), (360, 2), (361, 3), (900, 3)])
def test_long_videos_are_packed(num_frames: int, packed: int) -> None:
    times = PUBLISHED.times([index / 2 for index in range(num_frames)])
    assert times[:3] == (packed, 0, 5)[: num_frames + 1]
    assert len(times) == num_frames + 1


def test_times_are_known_to_encoders_that_read_them() -> None:
    assert PUBLISHED.times(()) == ()
    assert ScaledFrames().times((0.0, 0.5)) == ()


def test_equal_frames_at_other_times_have_other_keys() -> None:
    frames, processing = [scene(30, 20)] * 2, VideoProcessing(sizing=PUBLISHED)
    first, same, other = (
        make_video(frames, 2, processing, frame_seconds=seconds, fps=None) for seconds in ((0, 1), (0, 1), (0, 2))
    )
    assert first.key == same.key
    assert first.key != other.key
    assert (first.grid[3:], other.grid[3:]) == ((1, 0, 10), (1, 0, 20))


def test_refuses_too_many_frames_and_bounds() -> None:
    assert PUBLISHED.plan(256, 448, 448).resized == (448, 448)
    with pytest.raises(MediaError, match="expected at most 256 frames of this shape, got 257") as caught:
        PUBLISHED.plan(257, 448, 448)
    assert caught.value.code is MediaErrorCode.TOO_LARGE
    assert not PUBLISHED.fits(257, 448, 448)
    assert not PUBLISHED.fits(1, 448, 449)
    with pytest.raises(MediaOptionError, match="the model decides the size in pixels"):
        PUBLISHED.with_bounds(min_pixels=None, max_pixels=5, total_pixels=None)
