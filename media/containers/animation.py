"""Images of several frames or pages: which of them are animated, and why none is a still image."""

from typing import Any, cast

import PIL.Image

from glimpse.media.containers.sniff import ImageFormat, spelling
from glimpse.media.errors import MediaError, MediaErrorCode

ANIMATED_FORMATS = frozenset({ImageFormat.GIF, ImageFormat.WEBP, ImageFormat.PNG, ImageFormat.AVIF})
"""Formats whose frames follow each other in time."""
_SUBFILE_TYPE = 254
"""TIFF's tag whose lowest bit says that a page is a smaller version of another."""


def is_animated(image: PIL.Image.Image) -> bool:
    """Returns whether an opened image has several frames. May raise any exception if the file is corrupt."""
    return image.format in ANIMATED_FORMATS and getattr(image, "is_animated", False)


def check_still(image: PIL.Image.Image) -> None:
    """Refuses an opened image of which the model would see the first frame or page only.

    Raises:
        MediaError: UNSUPPORTED_FORMAT, with what to send instead; or any exception if the file is corrupt.
    """
    if is_animated(image):
        title = spelling(image.format)
        message = f"expected a still image, got an animated {title}; send it as a video, or one frame as PNG"
        raise MediaError(MediaErrorCode.UNSUPPORTED_FORMAT, message)
    if image.format == ImageFormat.TIFF and _has_pages(image):
        message = "expected an image of one page, got a TIFF of several; send each page as an image"
        raise MediaError(MediaErrorCode.UNSUPPORTED_FORMAT, message)


def _has_pages(image: PIL.Image.Image) -> bool:
    """Returns whether a second page follows that is not a smaller version of the first."""
    try:
        image.seek(1)
    except EOFError:
        return False
    subfile_type = cast(Any, image).tag_v2.get(_SUBFILE_TYPE, 0)
    image.seek(0)
    return not int(subfile_type) & 1
