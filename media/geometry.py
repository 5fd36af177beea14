"""To which size a picture is resized before it is cut into patches. Pure arithmetic; knows no pixels."""

import math

from media.errors import MediaError, MediaErrorCode

MAX_ASPECT_RATIO = 200
"""Qwen2-VL's own bound."""


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
