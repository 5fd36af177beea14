"""Validation of video options."""

from typing import Any

import pytest

from glimpse.media.errors import MediaErrorCode, MediaOptionError
from glimpse.media.processing.video_options import LARGEST_TOTAL_PIXELS, VideoOptions, check_options

NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"fps": 0}, "fps"),
        ({"fps": -1}, "fps"),
        ({"fps": NAN}, "fps"),
        ({"fps": INFINITY}, "fps"),
        ({"num_frames": 0}, "num_frames"),
        ({"num_frames": 769}, "num_frames"),
        ({"max_frames": 0}, "max_frames"),
        ({"max_frames": 10**9}, "max_frames"),
        ({"start_seconds": -0.1}, "start_seconds"),
        ({"start_seconds": NAN}, "start_seconds"),
        ({"end_seconds": INFINITY}, "end_seconds"),
        ({"start_seconds": 2, "end_seconds": 1}, "end_seconds"),
        ({"min_pixels": 0}, "min_pixels"),
        ({"max_pixels": 10**9}, "max_pixels"),
        ({"min_pixels": 2000, "max_pixels": 1000}, "min_pixels"),
        ({"total_pixels": LARGEST_TOTAL_PIXELS + 1}, "total_pixels"),
        ({"fps": 1, "num_frames": 4}, "num_frames"),
    ],
)
def test_refuses_invalid_options_by_name(options: dict[str, Any], name: str) -> None:
    with pytest.raises(MediaOptionError, match=f"^'{name}': expected ") as caught:
        check_options(VideoOptions(**options), of_frames=False)
    assert caught.value.name == name
    assert caught.value.code == MediaErrorCode.INVALID_PARAMETER


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"fps": 0.001},
        {"fps": 1000, "max_frames": 768, "start_seconds": 0, "end_seconds": 0},
        {"num_frames": 1, "min_pixels": 1, "max_pixels": 1, "total_pixels": 1},
    ],
)
def test_accepts_all_other_options(options: dict[str, Any]) -> None:
    check_options(VideoOptions(**options), of_frames=False)


@pytest.mark.parametrize("name", ["start_seconds", "end_seconds"])
def test_refuses_time_ranges_for_frame_lists(name: str) -> None:
    options: dict[str, Any] = {name: 1.0}
    with pytest.raises(MediaOptionError) as caught:
        check_options(VideoOptions(**options), of_frames=True)
    assert caught.value.name == name


def test_frame_lists_accept_fps_and_num_frames() -> None:
    check_options(VideoOptions(fps=2.0, num_frames=4), of_frames=True)
