"""Animated images as videos: their frames, their times, and limits on their work."""

from collections.abc import Sequence

import numpy as np
import PIL.Image
import pytest

from glimpse.media.decoding.video_file import video_from_file
from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.processing.video import Video
from glimpse.media.processing.video_options import VideoOptions
from tests.media.images import animation, encode, scene
from tests.media.loaders import VIDEO_PROCESSING
from tests.media.videos import greys, numbers

FORMATS = ("GIF", "WEBP", "PNG")


def load(data: bytes, num_frames: int | None = None) -> Video:
    return video_from_file(data, VIDEO_PROCESSING, VideoOptions(num_frames=num_frames))


def refusal(data: bytes) -> MediaError:
    with pytest.raises(MediaError) as caught:
        load(data)
    return caught.value


@pytest.mark.parametrize("file_format", FORMATS)
def test_an_animation_is_a_video(file_format: str) -> None:
    video = load(animation(greys(12), file_format, milliseconds=250))
    assert video.duration_seconds == 3
    # The default rate is one frame per second, and the model takes at least four.
    assert (video.fps, video.frame_seconds, numbers(video.pixels)) == (1, (0, 0.75, 1.5, 2.25), [0, 3, 6, 9])


@pytest.mark.parametrize("file_format", FORMATS)
def test_every_frame_may_be_sampled(file_format: str) -> None:
    assert numbers(load(animation(greys(8), file_format), num_frames=8).pixels) == list(range(8))


def with_delays(milliseconds: Sequence[int]) -> bytes:
    first, *others = (PIL.Image.fromarray(frame) for frame in greys(len(milliseconds)))
    return encode(first, "GIF", save_all=True, append_images=others, duration=list(milliseconds))


def test_each_frame_has_its_own_delay() -> None:
    assert load(with_delays([50, 200, 1000, 30]), num_frames=4).frame_seconds == (0, 0.05, 0.25, 1.25)


def test_delays_that_browsers_replace_are_a_tenth_of_a_second() -> None:
    assert load(with_delays([0, 10, 20, 20]), num_frames=4).frame_seconds == (0, 0.1, 0.2, 0.22)


def test_the_default_image_of_a_png_is_not_a_frame() -> None:
    frames = [PIL.Image.fromarray(frame) for frame in greys(4)]
    data = encode(scene(64, 48), "PNG", save_all=True, append_images=frames, duration=100, default_image=True)
    assert numbers(load(data, num_frames=4).pixels) == [0, 1, 2, 3]


def test_transparent_frames_show_the_background() -> None:
    clear = [PIL.Image.new("RGBA", (56, 56), (200, 0, 0, alpha)) for alpha in (0, 255)]
    data = encode(clear[0], "WEBP", save_all=True, append_images=clear[1:], lossless=True)
    colours = load(data, num_frames=2).pixels[:, 0, 0].tolist()
    assert colours == [[255, 255, 255], [200, 0, 0]]


def test_a_image_of_one_frame_is_not_a_video() -> None:
    error = refusal(animation(greys(1), "GIF"))
    assert error.code == MediaErrorCode.UNSUPPORTED_FORMAT
    assert error.message == "expected a video, got a GIF of one frame; send it as an image"


def test_limits_the_pixels_of_all_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glimpse.media.decoding.animation_file.MAX_PIXELS", 39_999)
    error = refusal(animation(greys(4), "GIF"))  # a small frame counts for 10,000 pixels
    assert (error.code, "4 frames of 64×48" in error.message) == (MediaErrorCode.TOO_LARGE, True)


@pytest.mark.parametrize("file_format", FORMATS)
def test_refuses_truncated_animations(file_format: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (4, 64, 64, 3), dtype=np.uint8)
    data = animation(noise, file_format)
    for share in (0.4, 0.9):
        assert refusal(data[: int(len(data) * share)]).code == MediaErrorCode.INVALID_MEDIA
