"""Target sizes of images and video frames, in Qwen2-VL's formulas. Pure arithmetic."""

import math

from glimpse.media.errors import MediaError, MediaErrorCode, OptionError

MAX_ASPECT_RATIO = 200
"""Qwen2-VL's limit."""
LARGEST_MAX_PIXELS = 16384 * 28 * 28
"""Largest bound that a request may set: the number of tokens that Qwen2-VL supports for one image."""


def smart_resize(height: int, width: int, *, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Returns the size closest to an image's own whose sides are multiples of `factor` and whose area is within bounds.

    The formula, including its rounding, is Qwen2-VL's (`smart_resize` in the image processor of transformers), so that
    an image becomes the same tokens. A side is never less than `factor`, even if the area is then out of bounds.

    Args:
        height: In pixels.
        width: In pixels.
        factor: Side of a token in pixels.
        min_pixels: Area to which smaller images are enlarged; at least 1.
        max_pixels: Area to which larger images are reduced.

    Returns:
        (height, width), in pixels.

    Raises:
        MediaError: INVALID_MEDIA if a side is 0 or more than 200 times the other.
    """
    if min(height, width) < 1:
        raise _invalid_image(f"expected an image of at least 1×1 pixels, got {width}×{height}")
    if max(height, width) > MAX_ASPECT_RATIO * min(height, width):
        raise _invalid_image(f"expected an aspect ratio of at most {MAX_ASPECT_RATIO}:1, got {width}×{height} pixels")
    new_height = round(height / factor) * factor
    new_width = round(width / factor) * factor
    if new_height * new_width > max_pixels:
        shrink = math.sqrt((height * width) / max_pixels)
        new_height = max(factor, math.floor(height / shrink / factor) * factor)
        new_width = max(factor, math.floor(width / shrink / factor) * factor)
    elif new_height * new_width < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        new_height = math.ceil(height * grow / factor) * factor
        new_width = math.ceil(width * grow / factor) * factor
    return new_height, new_width


def check_pixel_bounds(min_pixels: int | None, max_pixels: int | None) -> None:
    """Raises OptionError if the bounds contradict each other."""
    if min_pixels is not None and max_pixels is not None and min_pixels > max_pixels:
        raise OptionError("min_pixels", f"expected at most 'max_pixels' ({max_pixels}), got {min_pixels}")


def request_bounds(own_min: int, own_max: int, *, min_pixels: int | None, max_pixels: int | None) -> tuple[int, int]:
    """Returns the bounds on an image's area: the request's, else the checkpoint's.

    If the request sets only one bound, the checkpoint's other bound is moved so that it does not contradict it.

    Args:
        own_min: The checkpoint's minimum.
        own_max: The checkpoint's maximum.
        min_pixels: The request's minimum.
        max_pixels: The request's maximum.

    Raises:
        OptionError: The request's bounds are out of range or contradict each other.
    """
    for name, pixels in (("min_pixels", min_pixels), ("max_pixels", max_pixels)):
        if pixels is not None and not 1 <= pixels <= LARGEST_MAX_PIXELS:
            raise OptionError(name, f"expected an integer from 1 to {LARGEST_MAX_PIXELS}, got {pixels}")
    check_pixel_bounds(min_pixels, max_pixels)
    lower = min(own_min, max_pixels or own_min) if min_pixels is None else min_pixels
    upper = max(own_max, min_pixels or own_max) if max_pixels is None else max_pixels
    return lower, upper


def frame_max_pixels(num_frames: int, *, min_pixels: int, max_pixels: int, total_pixels: int, depth: int) -> int:
    """Returns the largest area of each frame of a video: its share of `total_pixels`, within bounds.

    The formula is Qwen2-VL's. A share is at least 1.05 · `min_pixels`, so that frames of long videos stay legible.

    Args:
        num_frames: Number of frames.
        min_pixels: Area to which smaller frames are enlarged.
        max_pixels: Area to which larger frames are reduced.
        total_pixels: Area of all frames together, where the `depth` frames of a patch count as one.
        depth: Frames per patch.
    """
    share = total_pixels * depth // num_frames
    return min(max_pixels, max(share, int(min_pixels * 1.05)))


def _invalid_image(message: str) -> MediaError:
    return MediaError(MediaErrorCode.INVALID_MEDIA, message)
