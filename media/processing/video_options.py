"""Options of a request for a video: which frames are sampled and how large they are."""

import math
from dataclasses import dataclass

from glimpse.media.errors import MediaOptionError
from glimpse.media.processing.frame_sampling import MAX_FRAMES
from glimpse.media.processing.sizing.recipe import check_pixel_bounds
from glimpse.media.processing.sizing.smart_frames import LARGEST_TOTAL_PIXELS
from glimpse.media.processing.sizing.smart_resize import LARGEST_MAX_PIXELS


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoOptions:
    """Options of a request; None selects the default."""

    fps: float | None = None
    """For a file, frames to sample per second; for a list of frames, their frame rate."""
    num_frames: int | None = None
    """Number of frames to sample, evenly spaced."""
    max_frames: int | None = None
    """Limit on the number of sampled frames."""
    start_seconds: float | None = None
    """Start of the part of a file to sample from, relative to the first frame."""
    end_seconds: float | None = None
    """End of that part, inclusive."""
    min_pixels: int | None = None
    """Minimum area of a resized frame."""
    max_pixels: int | None = None
    """Maximum area of a resized frame."""
    total_pixels: int | None = None
    """Maximum area of all resized frames together, where frames that share their tokens count as one."""


def check_options(options: VideoOptions, *, of_frames: bool) -> None:
    """Checks the ranges of the options, and that they do not contradict each other.

    Args:
        of_frames: the video is a list of frames, not a file.

    Raises:
        MediaOptionError: the first option that cannot be honoured.
    """
    _check_ranges(options)
    check_pixel_bounds(options.min_pixels, options.max_pixels)
    if of_frames:
        _check_frames(options)
    else:
        _check_file(options)


def _check_ranges(options: VideoOptions) -> None:
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
        # Written so that NaN fails; infinity is refused as a time.
        if value is not None and not (least <= value <= most and value < math.inf):
            expected = "seconds, at least 0" if most == math.inf else f"an integer from {least} to {most}"
            raise MediaOptionError(name, f"expected {expected}, got {value:.12g}")
    if options.fps is not None and not 0 < options.fps < math.inf:
        raise MediaOptionError("fps", f"expected a finite number above 0, got {options.fps:g}")


def _check_frames(options: VideoOptions) -> None:
    for name in ("start_seconds", "end_seconds"):
        if getattr(options, name) is not None:
            raise MediaOptionError(name, "expected a video file, got a list of frames, which cannot be cut by time")


def _check_file(options: VideoOptions) -> None:
    if options.fps is not None and options.num_frames is not None:
        raise MediaOptionError("num_frames", "expected either 'fps' or 'num_frames', got both")
    if options.end_seconds is not None and (options.start_seconds or 0) > options.end_seconds:
        problem = f"expected at least 'start_seconds' ({options.start_seconds:g}), got {options.end_seconds:g}"
        raise MediaOptionError("end_seconds", problem)
