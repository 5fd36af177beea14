"""Video processing: time ranges, frame sampling, pixel bounds, checkpoint settings, and keys."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glimpse.media.decoding.video_file import video_from_file
from glimpse.media.decoding.video_frames import sample_frame_indices, video_from_images
from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.processing.frame_sampling import EndpointSampling, PatchSampling
from glimpse.media.processing.image import ImageProcessing, prepare_image
from glimpse.media.processing.sizing.smart_frames import SmartFrames, frame_max_pixels
from glimpse.media.processing.sizing.smart_resize import SmartResize
from glimpse.media.processing.sizing.volume_frames import VolumeFrames
from glimpse.media.processing.video import Video, VideoProcessing, video_processing, volume_video_processing
from glimpse.media.processing.video_options import VideoOptions
from tests.media.images import scene
from tests.media.sizes import num_tokens, resized_by
from tests.media.videos import greys, numbers, video

PROCESSING = VideoProcessing(
    sizing=SmartFrames(
        patch_size=14,
        merge_size=2,
        temporal_patch_size=2,
        min_pixels=28 * 28,
        max_pixels=768 * 28 * 28,
        total_pixels=24576 * 28 * 28,
    )
)
VIDEO = video(greys(40), fps=10)
"""A video of four seconds."""


def of_file(data: bytes = VIDEO, **options: Any) -> Video:
    return video_from_file(data, PROCESSING, VideoOptions(**options))


def of_frames(frames: np.ndarray, processing: VideoProcessing = PROCESSING, **options: Any) -> Video:
    """Processes an array of frames, [frames, height, width, 3]."""
    video_options = VideoOptions(**options)
    frame_indices = sample_frame_indices(len(frames), video_options, processing.sampling)
    return video_from_images(
        (PIL.Image.fromarray(frames[index]) for index in frame_indices), frame_indices, processing, video_options
    )


def refusal(data: bytes = VIDEO, **options: Any) -> MediaError:
    with pytest.raises(MediaError) as caught:
        of_file(data, **options)
    return caught.value


@pytest.mark.parametrize(
    ("options", "frames", "fps"),
    [
        ({}, [0, 10, 20, 30], 1),
        ({"fps": 2}, [0, 5, 10, 15, 20, 25, 30, 35], 2),
        ({"fps": 100, "max_frames": 4}, [0, 10, 20, 30], 100),
        ({"num_frames": 2}, [0, 20], None),
        ({"num_frames": 4, "start_seconds": 2}, [20, 25, 30, 35], None),
        ({"num_frames": 4, "end_seconds": 0.75}, [0, 2, 4, 6], None),
        ({"num_frames": 2, "start_seconds": 1.95, "end_seconds": 2.1}, [20, 21], None),
        ({"start_seconds": 3.9}, [39], 1),
        ({"fps": 5, "start_seconds": 1, "end_seconds": 2.9}, [10, 12, 14, 16, 18, 20, 22, 24, 26, 28], 5),
    ],
)
def test_samples_the_requested_frames(options: dict[str, Any], frames: list[int], fps: float | None) -> None:
    loaded_video = of_file(**options)
    assert numbers(loaded_video.pixels) == frames
    assert loaded_video.frame_seconds == pytest.approx([frame / 10 for frame in frames])
    assert loaded_video.fps == fps
    assert loaded_video.grid[0] == -(-len(frames) // 2)


@pytest.mark.parametrize(
    ("num_frames", "options", "frame_indices"),
    [
        (5, {}, [0, 1, 2, 3, 4]),
        (5, {"fps": 3}, [0, 1, 2, 3, 4]),
        (5, {"num_frames": 2}, [0, 2]),
        (8, {"max_frames": 4}, [0, 2, 4, 6]),
        (1, {"num_frames": 9}, [0]),
    ],
)
def test_all_frames_of_a_list_are_used_unless_fewer_are_requested(
    num_frames: int, options: dict[str, Any], frame_indices: list[int]
) -> None:
    loaded_video = of_frames(greys(num_frames), **options)
    assert numbers(loaded_video.pixels) == frame_indices
    rate = options.get("fps")
    assert loaded_video.frame_seconds == (tuple(index / rate for index in frame_indices) if rate else ())
    assert loaded_video.fps is None


def test_long_frame_lists_are_subsampled() -> None:
    assert len(sample_frame_indices(4096, VideoOptions(), PatchSampling())) == 768


def test_refuses_a_video_without_frames() -> None:
    with pytest.raises(MediaError, match="no frames"):
        sample_frame_indices(0, VideoOptions(), PatchSampling())


def test_refuses_a_time_range_without_frames() -> None:
    error = refusal(start_seconds=4)
    assert (error.code, "lasts 4 s" in error.message) == (MediaErrorCode.INVALID_PARAMETER, True)


def test_refuses_long_videos_without_a_time_range() -> None:
    day = video(greys(6), times=[0, 1, 2, 3, 4, 86400], fps=1)
    error = refusal(day)
    assert (error.code, "at most 3600 s" in error.message) == (MediaErrorCode.TOO_LARGE, True)
    assert numbers(of_file(day, end_seconds=3).pixels) == [0, 1, 2, 3]


def test_refuses_videos_with_too_much_to_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glimpse.media.decoding.video_file.MAX_DECODED_PIXELS", 64 * 48 * 31)
    long = video(greys(40), keyframe_every=100)
    assert refusal(long, num_frames=40).code == MediaErrorCode.TOO_LARGE
    assert of_file(long, num_frames=4)


def test_refuses_frames_that_are_too_large_in_total() -> None:
    error = refusal(num_frames=40, min_pixels=4_000_000, max_pixels=4_000_000)
    assert error.code == MediaErrorCode.TOO_LARGE
    assert "40 frames of" in error.message


@pytest.mark.parametrize(
    ("num_frames", "total_pixels", "each"),
    [
        (4, 24576 * 784, 768 * 784),  # the maximum of a frame
        (768, 24576 * 784, 134 * 784),  # its share is 64 tokens, but the minimum is slightly above 128
        (100, 24576 * 784, 491 * 784),
        (8, 1024 * 784, 256 * 784),
    ],
)
def test_frame_max_pixels_divides_total_pixels(num_frames: int, total_pixels: int, each: int) -> None:
    most = frame_max_pixels(num_frames, min_pixels=128 * 784, max_pixels=768 * 784, total_pixels=total_pixels, depth=2)
    assert most // 784 * 784 == each


def test_applies_the_requests_bounds() -> None:
    large = np.stack([np.asarray(scene(400, 300))] * 4)
    assert of_frames(large, max_pixels=90 * 120).pixels.shape[1:3] == (84, 112)
    assert of_frames(greys(4, width=28, height=28), min_pixels=84 * 84).pixels.shape[1:3] == (84, 84)
    assert of_frames(large, total_pixels=2 * 90 * 120).pixels.shape[1:3] == (84, 112)


def test_frames_are_resized_like_images() -> None:
    source_image = scene(131, 77)
    images = ImageProcessing(
        sizing=SmartResize(patch_size=14, merge_size=2, temporal_patch_size=2, min_pixels=784, max_pixels=768 * 784)
    )
    loaded_video = of_frames(np.stack([np.asarray(source_image)] * 3))
    assert all((frame == prepare_image(source_image, images).pixels).all() for frame in loaded_video.pixels)
    assert loaded_video.key != prepare_image(source_image, images).key


def test_equal_pixels_have_the_same_key_from_any_source() -> None:
    loaded_video = of_file(num_frames=6)
    assert of_frames(loaded_video.pixels).key == loaded_video.key
    assert of_frames(loaded_video.pixels, fps=2.5).key == loaded_video.key


def test_different_videos_have_different_keys() -> None:
    frames = greys(4)
    changed = frames.copy()
    changed[3, 47, 63, 2] ^= 1
    loaded_videos = [
        of_frames(frames),
        of_frames(changed),
        of_frames(frames[::-1]),
        of_frames(frames[:3]),
        of_frames(frames, resized_by(PROCESSING, temporal_patch_size=1)),
        of_frames(frames, resized_by(PROCESSING, patch_size=28, merge_size=1)),
    ]
    assert len({loaded_video.key for loaded_video in loaded_videos}) == len(loaded_videos)


@given(
    num_frames=st.integers(1, 12),
    height=st.integers(1, 200),
    width=st.integers(1, 200),
    total_tokens=st.integers(1, 64),
)
def test_pixels_and_tokens_match_the_grid(num_frames: int, height: int, width: int, total_tokens: int) -> None:
    frames = np.zeros((num_frames, height, width, 3), np.uint8)
    loaded_video = of_frames(frames, total_pixels=total_tokens * 784)
    grid_t, grid_h, grid_w = loaded_video.grid
    assert loaded_video.pixels.shape == (num_frames, grid_h * 14, grid_w * 14, 3)
    assert (grid_t, grid_h % 2, grid_w % 2) == (-(-num_frames // 2), 0, 0)
    assert num_tokens(loaded_video) == grid_t * grid_h * grid_w // 4


def write_configs(folder: Path, own: dict[str, Any] | None) -> Path:
    source_images = {"min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "merge_size": 2}
    (folder / "preprocessor_config.json").write_text(json.dumps(source_images))
    if own is not None:
        (folder / "video_preprocessor_config.json").write_text(json.dumps(own))
    return folder


@pytest.mark.parametrize(
    ("own", "bounds"),
    [
        (None, (128 * 784, 768 * 784)),  # the bounds of images do not apply to videos
        ({}, (128 * 784, 768 * 784)),
        ({"min_pixels": 3136, "max_pixels": 50176}, (3136, 50176)),
        ({"size": {"shortest_edge": 3136, "longest_edge": 50176}}, (3136, 50176)),
        ({"size": {"shortest_edge": 3136, "longest_edge": 12845056}}, (3136, 768 * 784)),
        ({"max_pixels": 50176}, (50176, 50176)),
    ],
)
def test_reads_the_bounds_of_a_checkpoint(tmp_path: Path, own: dict[str, Any] | None, bounds: tuple[int, int]) -> None:
    sizing = video_processing(write_configs(tmp_path, own)).sizing
    assert isinstance(sizing, SmartFrames)
    assert (sizing.min_pixels, sizing.max_pixels) == bounds
    assert (sizing.patch_size, sizing.merge_size, sizing.temporal_patch_size) == (14, 2, 2)


@pytest.mark.parametrize(
    "own", [{"resample": 2}, {"patch_size": 0}, {"size": {"longest_edge": "large"}}, {"image_mean": [0, 0, 0]}]
)
def test_refuses_unsupported_video_configurations(tmp_path: Path, own: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        video_processing(write_configs(tmp_path, own))


@pytest.mark.parametrize(
    ("own", "sizing", "sampling"),
    [
        (None, VolumeFrames(), EndpointSampling()),
        (
            {"size": {"longest_edge": 25_165_824, "shortest_edge": 4096}, "patch_size": 16, "fps": 2, "max_frames": 99},
            VolumeFrames(min_volume=4096, max_volume=25_165_824),
            EndpointSampling(max_frames=99),
        ),
        ({"cap_pixels_per_frame": True}, VolumeFrames(max_frame_tokens=768), EndpointSampling()),
    ],
)
def test_reads_bounds_on_the_volume(
    tmp_path: Path, own: dict[str, Any] | None, sizing: VolumeFrames, sampling: EndpointSampling
) -> None:
    path = write_configs(tmp_path, own)
    (path / "preprocessor_config.json").write_text(json.dumps({"patch_size": 16}))
    assert volume_video_processing(path) == VideoProcessing(sizing=sizing, sampling=sampling)


@pytest.mark.parametrize("own", [{"resample": 2}, {"size": {"longest_edge": 0}}, {"num_frames": 8}])
def test_refuses_unsupported_configurations_of_volumes(tmp_path: Path, own: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        volume_video_processing(write_configs(tmp_path, own))
