"""To which size pictures and frames are resized before they are cut into patches. Pure arithmetic; knows no pixels."""

import math

from glimpse.media.errors import MediaError, MediaErrorCode, OptionError

MAX_ASPECT_RATIO = 200
"""Qwen2-VL's own bound."""
LARGEST_MAX_PIXELS = 16384 * 28 * 28
"""The most that a request may ask for: as many tokens as Qwen2-VL was made for in one picture."""


def smart_resize(height: int, width: int, *, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """The size nearest to a picture's own whose sides are multiples of `factor` and whose area lies within bounds.

    The formula, its rounding included, is Qwen2-VL's (`smart_resize` in the reference implementation's image
    processor), so that a picture becomes the same tokens. A side is never less than `factor`, even where the area is
    then out of bounds.

    Args:
        height: Pixels.
        width: Pixels.
        factor: Pixels of a token's side.
        min_pixels: Area to which smaller pictures are enlarged; at least 1.
        max_pixels: Area to which larger pictures are reduced.

    Returns:
        (height, width), in pixels.

    Raises:
        MediaError: INVALID_MEDIA if a side is nothing, or one is more than 200 times the other.
    """
    if min(height, width) < 1:
        raise MediaError(MediaErrorCode.INVALID_MEDIA, f"the picture is {width}×{height}: it has no pixels")
    if max(height, width) > MAX_ASPECT_RATIO * min(height, width):
        raise MediaError(
            MediaErrorCode.INVALID_MEDIA,
            f"the picture is {width}×{height}: one side may be at most {MAX_ASPECT_RATIO} times the other",
        )
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
    """Returns the bounds on an image's area: a request's, and where it sets none, the checkpoint's.

    Where a request sets one bound only, the checkpoint's other bound is moved to not contradict it.

    Raises:
        OptionError: the request's bounds contradict each other or are out of range.
    """
    for name, pixels in (("min_pixels", min_pixels), ("max_pixels", max_pixels)):
        if pixels is not None and not 1 <= pixels <= LARGEST_MAX_PIXELS:
            raise OptionError(name, f"expected an integer from 1 to {LARGEST_MAX_PIXELS}, got {pixels}")
    check_pixel_bounds(min_pixels, max_pixels)
    lower = min(own_min, max_pixels or own_min) if min_pixels is None else min_pixels
    upper = max(own_max, min_pixels or own_max) if max_pixels is None else max_pixels
    return lower, upper


def frame_max_pixels(num_frames: int, *, min_pixels: int, max_pixels: int, total_pixels: int, depth: int) -> int:
    """The area to which each of a clip's frames is reduced: its share of what all may have, within bounds of its own.

    The formula is Qwen2-VL's: a share is never less than a little over `min_pixels`, so that a frame of a long clip can
    still be seen.

    Args:
        num_frames: of the clip.
        min_pixels: area to which smaller frames are enlarged.
        max_pixels: area to which larger frames are reduced.
        total_pixels: area of all frames, of which `depth` count as one because they share their tokens.
        depth: frames of a patch in time.
    """
    share = total_pixels * depth // num_frames
    return min(max_pixels, max(share, int(min_pixels * 1.05)))
