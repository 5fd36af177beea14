"""Decoding of image files with Pillow. The size is checked before pixels are allocated."""

import warnings
from importlib import import_module
from io import BytesIO
from math import ceil
from typing import Any, cast

import numpy as np
import PIL.Image
from PIL.JpegImagePlugin import JpegImageFile

from glimpse.media.containers.animation import check_still
from glimpse.media.containers.decode_errors import report_decode_errors
from glimpse.media.containers.gif import check_frames
from glimpse.media.containers.sniff import ImageFormat, sniff_image, spelling
from glimpse.media.errors import MediaError, MediaErrorCode

# Both settings are global to the process. Pillow's own limit on dimensions only warns where ours refuses, and its other
# warnings about clients' files do not belong in the server's log.
PIL.Image.MAX_IMAGE_PIXELS = None
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")

MAX_JPEG_PIXELS = 300_000_000
"""Limit on a JPEG that is decoded at a fraction of its size: the largest cameras of phones have 200 million pixels."""

_RGB_PIXEL_BYTES = 4
"""Memory of a pixel in Pillow."""
MAX_PIXEL_BYTES = 12
"""Memory of pixels that are converted to RGB, with copies."""


def open_image(data: bytes, *, max_pixels: int) -> PIL.Image.Image:
    """Reads the header of an image file of one frame; `load_pixels` decodes the rest.

    Raises:
        MediaError: UNSUPPORTED_FORMAT, INVALID_MEDIA, or TOO_LARGE for more than `max_pixels`. Of a JPEG they are the
            pixels that `load_pixels` decodes.
    """
    image = open_frames(data, max_pixels=max_pixels)
    with report_decode_errors(spelling(image.format)):
        check_still(image)
    return image


def open_frames(data: bytes, *, max_pixels: int) -> PIL.Image.Image:
    """Does what `open_image` does, for images of any number of frames."""
    image_format = sniff_image(data)
    if image_format is ImageFormat.GIF:
        check_frames(data, max_pixels)
    with report_decode_errors(spelling(image_format)):
        _load_plugin(image_format)
        # Only the sniffed decoder sees the bytes, so a file cannot select a less tested one.
        image = PIL.Image.open(BytesIO(data), formats=[image_format])
    _check_size(image, data, max_pixels)
    return image


def _check_size(image: PIL.Image.Image, data: bytes, max_pixels: int) -> None:
    """Raises MediaError: TOO_LARGE."""
    if image.width * image.height <= max_pixels:
        return
    what = f"an image of at most {max_pixels} pixels"
    if isinstance(image, JpegImageFile):
        if has_one_scan(data) and image.width * image.height <= MAX_JPEG_PIXELS and _scale(image, max_pixels):
            return
        what = f"a JPEG of at most {max_pixels} pixels, or {MAX_JPEG_PIXELS} if it is not progressive"
    raise MediaError(MediaErrorCode.TOO_LARGE, f"expected {what}, got {image.width}×{image.height}")


def _scale(image: PIL.Image.Image, max_pixels: int) -> int | None:
    """Returns the least denominator of JPEG's sizes that gives at most so many pixels, if there is one."""
    sizes = ((scale, ceil(image.width / scale) * ceil(image.height / scale)) for scale in (1, 2, 4, 8))
    return next((scale for scale, num_pixels in sizes if num_pixels <= max_pixels), None)


def _load_plugin(image_format: ImageFormat) -> None:
    """Imports what Pillow needs for rare formats. It decodes in one thread, as a worker decodes one file at a time."""
    if image_format is ImageFormat.HEIC:
        # libheif turns the image as its own properties say, and Pillow does not turn it again.
        import_module("pi_heif").register_heif_opener(
            decode_threads=1, thumbnails=False, depth_images=False, aux_images=False
        )
    elif image_format is ImageFormat.AVIF:
        cast(Any, import_module("PIL.AvifImagePlugin")).DEFAULT_MAX_THREADS = 1


def decoded_bytes(image: PIL.Image.Image, *, max_pixels: int) -> int:
    """Returns about how much memory `load_pixels` and conversion to RGB take; the arguments are those of the former."""
    of_pixel = _RGB_PIXEL_BYTES if image.mode == "RGB" else MAX_PIXEL_BYTES
    return of_pixel * min(image.width * image.height, max_pixels)


def load_pixels(
    image: PIL.Image.Image, *, max_pixels: int | None = None, enough: tuple[int, int] | None = None
) -> None:
    """Decodes the pixels of an opened image, unless it has them already. A JPEG may become smaller.

    Args:
        image: Changed in place.
        max_pixels: A JPEG with more is decoded at 1/2, 1/4 or 1/8 of its size.
        enough: A JPEG is decoded at the least of these sizes that has this width and height.

    Raises:
        MediaError: INVALID_MEDIA if the file is corrupt; TOO_LARGE if it needs too much memory.
    """
    with report_decode_errors(spelling(image.format)):
        if isinstance(image, JpegImageFile):
            scale = 1 if max_pixels is None else _scale(image, max_pixels) or 1
            width, height = enough or image.size
            image.draft(image.mode, (min(width, image.width // scale), min(height, image.height // scale)))
        _widen_key(image)
        low = _low_bytes(image)
        image.load()
        if low is not None:
            _apply_key(image, low)


_GREY_STEPS = {"L;2": 85, "L;4": 17}
"""By Pillow's name of the pixels of a file, how far apart these greys are in 8 bits."""


def _widen_key(image: PIL.Image.Image) -> None:
    """Gives the transparent grey of a PNG as many bits as its pixels get when they are loaded, which Pillow does not.

    A loaded image has no name of its pixels left, and stays as it is.
    """
    key, tiles = image.info.get("transparency"), getattr(image, "tile", ())
    if isinstance(key, int) and tiles and isinstance(tiles[0].args, str):
        image.info["transparency"] = key * _GREY_STEPS.get(tiles[0].args, 1)


def _low_bytes(image: PIL.Image.Image) -> PIL.Image.Image | None:
    """Returns the low bytes of a PNG's 16-bit colors if one is transparent. Pillow keeps and compares the high ones."""
    tiles = getattr(image, "tile", ())
    has_key = "transparency" in image.info and not getattr(image, "is_animated", False)
    if not has_key or not tiles or tiles[0].args != "RGB;16B":
        return None
    file = cast(Any, image).fp
    place = file.tell()
    file.seek(0)
    low: Any = PIL.Image.open(file, formats=["PNG"])
    low.tile = [tile._replace(args="RGB;16L") for tile in low.tile]
    low.load()
    file.seek(place)
    return low


def _apply_key(image: PIL.Image.Image, low: PIL.Image.Image) -> None:
    """Makes the transparent color of a PNG of 16-bit colors transparent; its pixels have the high bytes."""
    key = image.info.pop("transparency")
    high_key, low_key = zip(*(divmod(value, 256) for value in key), strict=True)
    is_key = (np.asarray(image) == high_key) & (np.asarray(low) == low_key)  # [height, width, 3]
    image.putalpha(PIL.Image.fromarray(~is_key.all(axis=2)))


_START_OF_SCAN = 0xDA
_SEQUENTIAL = (0xC0, 0xC1)
_OTHER_FRAMES = frozenset({0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF})


def has_one_scan(data: bytes) -> bool:
    """Returns whether the first scan of a file has all of its components, so that rows are decoded one by one.

    Of other files, such as progressive ones, a decoder keeps all coefficients in memory, whatever size it makes.
    """
    num_components, place = 0, 2
    while place + 4 <= len(data) and data[place] == 0xFF:
        marker = data[place + 1]
        if marker == 0xFF:  # padding
            place += 1
            continue
        if marker in _OTHER_FRAMES:
            return False
        if marker == _START_OF_SCAN:
            return data[place + 4 : place + 5] == bytes([num_components])
        if marker in _SEQUENTIAL:
            num_components = data[place + 9] if place + 9 < len(data) else 0
        place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")
    return False
