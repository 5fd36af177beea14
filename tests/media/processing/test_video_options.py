"""Which wishes about a clip can be honoured."""

from typing import Any

import pytest

from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.processing.video_options import (
    LARGEST_TOTAL_PIXELS,
    VideoOptions,
    check_options,
    find_invalid_option,
)

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
def test_an_option_that_cannot_be_honoured_is_named(options: dict[str, Any], name: str) -> None:
    wrong = find_invalid_option(VideoOptions(**options), of_frames=False)
    assert wrong is not None
    assert wrong.name == name
    with pytest.raises(MediaError, match=f"^{name}: ") as caught:
        check_options(VideoOptions(**options), of_frames=False)
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
def test_everything_else_can(options: dict[str, Any]) -> None:
    assert find_invalid_option(VideoOptions(**options), of_frames=False) is None


@pytest.mark.parametrize("name", ["start_seconds", "end_seconds"])
def test_a_list_of_frames_has_no_part_to_be_cut_off(name: str) -> None:
    options: dict[str, Any] = {name: 1.0}
    wrong = find_invalid_option(VideoOptions(**options), of_frames=True)
    assert wrong is not None
    assert wrong.name == name


def test_a_list_of_frames_may_have_a_rate_and_a_number() -> None:
    assert find_invalid_option(VideoOptions(fps=2.0, num_frames=4), of_frames=True) is None
