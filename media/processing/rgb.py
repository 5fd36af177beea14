"""Conversion of Pillow images of any mode and EXIF orientation to upright 8-bit RGB."""

import numpy as np
import PIL.Image
from PIL.ExifTags import Base
from PIL.Image import Transpose

from glimpse.media.errors import MediaError, MediaErrorCode

Colour = tuple[int, int, int]

# EXIF orientation → operation that makes the image upright. 1 is upright.
_TURNS = {
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_90,
}

_SIXTEEN_BIT_GREYS = frozenset({"I;16", "I;16B", "I;16L"})
_EIGHT_BITS = 1 << 8
_PHOTOMETRIC, _WHITE_IS_ZERO = 262, 0
_PALETTED = frozenset({"P", "PA"})
_CONVERTIBLE = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr"})


def orientation_of(image: PIL.Image.Image) -> int:
    """Returns the EXIF orientation, 1 to 8; 1 without a valid one. Some formats report it only once loaded."""
    try:
        orientation = image.getexif().get(int(Base.Orientation), 1)
    except Exception:  # Pillow raises any exception for corrupt EXIF, which alone is no reason to refuse an image
        return 1
    return orientation if orientation in _TURNS else 1


def upright_rgb(image: PIL.Image.Image, background: Colour) -> PIL.Image.Image:
    """Applies the EXIF orientation of a loaded image, converts it to RGB and fills transparency with `background`.

    An upright, opaque RGB image is returned unchanged, bit for bit.

    Raises:
        MediaError: UNSUPPORTED_FORMAT for modes without a defined conversion to colors (floats, 32-bit integers);
            INVALID_MEDIA if the palette is missing.
    """
    turn = _TURNS.get(orientation_of(image))
    rgb = _to_rgb(image, background)
    return rgb if turn is None else rgb.transpose(turn)


def _to_rgb(image: PIL.Image.Image, background: Colour) -> PIL.Image.Image:
    if image.mode in _SIXTEEN_BIT_GREYS:
        return _of_sixteen_bits(image, background)
    if image.mode not in _CONVERTIBLE:
        message = f"expected 8-bit or 16-bit colors, got an image of Pillow mode {image.mode}"
        raise MediaError(MediaErrorCode.UNSUPPORTED_FORMAT, message)
    if image.mode in _PALETTED and image.palette is None:
        raise MediaError(MediaErrorCode.INVALID_MEDIA, "the image is corrupt: its palette is missing")
    if image.has_transparency_data:
        return _composite(_with_eight_bit_key(image).convert("RGBA"), background)
    return image if image.mode == "RGB" else image.convert("RGB")


def _of_sixteen_bits(image: PIL.Image.Image, background: Colour) -> PIL.Image.Image:
    # `convert` would saturate at 255. For 16-bit colors Pillow keeps the high byte, and so does this.
    values = np.asarray(image)
    if getattr(image, "tag_v2", {}).get(_PHOTOMETRIC) == _WHITE_IS_ZERO:  # a TIFF's, which Pillow inverts up to 8 bits
        values = ~values
    rgb = PIL.Image.fromarray((values >> 8).astype(np.uint8)).convert("RGB")
    transparent = image.info.get("transparency")
    if transparent is not None:
        rgb.paste(background, mask=PIL.Image.fromarray(values == transparent))
    return rgb


def _with_eight_bit_key(image: PIL.Image.Image) -> PIL.Image.Image:
    """Returns an image whose transparent color has the bits of its pixels, of which Pillow keeps the high bytes."""
    key = image.info.get("transparency")
    if not isinstance(key, tuple) or max(key) < _EIGHT_BITS:
        return image
    image = image.copy()
    image.info["transparency"] = tuple(value >> 8 for value in key)
    return image


def _composite(image: PIL.Image.Image, background: Colour) -> PIL.Image.Image:
    canvas = PIL.Image.new("RGB", image.size, background)
    canvas.paste(image, mask=image.getchannel("A"))
    return canvas
