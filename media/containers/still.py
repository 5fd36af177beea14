"""Decoding of image files with Pillow. The size is checked before pixels are allocated."""

import warnings
from io import BytesIO

import PIL.Image

from glimpse.media.containers.animation import check_still
from glimpse.media.containers.decode_errors import report_decode_errors
from glimpse.media.containers.sniff import sniff_image
from glimpse.media.errors import MediaError, MediaErrorCode

# Both settings are global to the process. Pillow's own limit on dimensions only warns where ours refuses, and its other
# warnings about clients' files do not belong in the server's log.
PIL.Image.MAX_IMAGE_PIXELS = None
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")


def open_image(data: bytes, *, max_pixels: int) -> PIL.Image.Image:
    """Reads the header of an image file of one frame; `load_pixels` decodes the rest.

    Raises:
        MediaError: UNSUPPORTED_FORMAT, INVALID_MEDIA, or TOO_LARGE for more than `max_pixels`.
    """
    image = open_frames(data, max_pixels=max_pixels)
    with report_decode_errors(image.format or "image"):
        check_still(image)
    return image


def open_frames(data: bytes, *, max_pixels: int) -> PIL.Image.Image:
    """As `open_image`, for images of any number of frames."""
    image_format = sniff_image(data)
    with report_decode_errors(image_format):
        # Only the sniffed decoder sees the bytes, so a file cannot select a less tested one.
        image = PIL.Image.open(BytesIO(data), formats=[image_format])
    if image.width * image.height > max_pixels:
        message = f"expected an image of at most {max_pixels} pixels, got {image.width}×{image.height}"
        raise MediaError(MediaErrorCode.TOO_LARGE, message)
    return image


def load_pixels(image: PIL.Image.Image) -> None:
    """Decodes the pixels of an opened image, unless it has them already.

    Raises:
        MediaError: INVALID_MEDIA if the file is corrupt; TOO_LARGE if it needs too much memory.
    """
    with report_decode_errors(image.format or "image"):
        image.load()
