"""What a request says about a clip: which frames are taken and how large they are. Knows no file and no pixel."""

import math
from dataclasses import dataclass

from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.processing.frame_sampling import MAX_FRAMES
from glimpse.media.processing.smart_resize import LARGEST_MAX_PIXELS

LARGEST_TOTAL_PIXELS = 32768 * 28 * 28
"""The most that a request may ask for: Qwen2-VL's context window has no room for more tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoOptions:
    """Wishes of a request; None leaves the choice to the server."""

    fps: float | None = None
    """Frames taken per second of a file; of frames that are given, their rate."""
    num_frames: int | None = None
    """Frames taken, evenly spaced."""
    max_frames: int | None = None
    """The most frames taken."""
    start_seconds: float | None = None
    """Where the shown part of a file begins, from the file's first frame."""
    end_seconds: float | None = None
    """Where it ends; a frame at this very time is still taken."""
    min_pixels: int | None = None
    """The fewest pixels of a frame after resizing."""
    max_pixels: int | None = None
    """The most pixels of a frame after resizing."""
    total_pixels: int | None = None
    """The most pixels of all frames, where frames that share their tokens count as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidOption:
    """An option that cannot be honoured."""

    name: str
    """As in `VideoOptions`."""
    message: str


def find_invalid_option(options: VideoOptions, *, of_frames: bool) -> InvalidOption | None:
    """The first option that is out of its range or contradicts another; `of_frames`: the clip is a list of frames."""
    return _out_of_range(options) or _contradiction(options, of_frames=of_frames)


def check_options(options: VideoOptions, *, of_frames: bool) -> None:
    """Raises MediaError (INVALID_PARAMETER) for what `find_invalid_option` finds."""
    wrong = find_invalid_option(options, of_frames=of_frames)
    if wrong is not None:
        raise MediaError(MediaErrorCode.INVALID_PARAMETER, f"{wrong.name}: {wrong.message}")


def _out_of_range(options: VideoOptions) -> InvalidOption | None:
    ranges = (
        ("num_frames", 1, MAX_FRAMES),
        ("max_frames", 1, MAX_FRAMES),
        ("min_pixels", 1, LARGEST_MAX_PIXELS),
        ("max_pixels", 1, LARGEST_MAX_PIXELS),
        ("total_pixels", 1, LARGEST_TOTAL_PIXELS),
        ("start_seconds", 0, math.inf),
        ("end_seconds", 0, math.inf),
    )
    for name, least, most in ranges:
        value = getattr(options, name)
        # Written so that NaN fails; infinity is no time.
        if value is not None and not (least <= value <= most and value < math.inf):
            message = (
                f"{value:g} is not a number of seconds" if most == math.inf else f"{value} is not within 1 … {most}"
            )
            return InvalidOption(name=name, message=message)
    if options.fps is not None and not 0 < options.fps < math.inf:
        return InvalidOption(name="fps", message=f"{options.fps:g} is no rate; it must be more than 0")
    return None


def _contradiction(options: VideoOptions, *, of_frames: bool) -> InvalidOption | None:
    if options.min_pixels is not None and options.max_pixels is not None and options.min_pixels > options.max_pixels:
        message = f"{options.min_pixels} is more than the most pixels allowed, {options.max_pixels}"
        return InvalidOption(name="min_pixels", message=message)
    if of_frames:
        for name in ("start_seconds", "end_seconds"):
            if getattr(options, name) is not None:
                return InvalidOption(name=name, message="only a video file has a beginning and an end to be cut off")
        return None
    if options.fps is not None and options.num_frames is not None:
        return InvalidOption(name="num_frames", message="fps and num_frames exclude each other")
    if options.end_seconds is not None and (options.start_seconds or 0) > options.end_seconds:
        return InvalidOption(name="end_seconds", message="the clip would end before it begins")
    return None
