"""Any picture → an upright one of 8-bit RGB. Knows Pillow's modes and EXIF's orientations, no files and no sizes."""

import numpy as np
import PIL.Image
from PIL.ExifTags import Base
from PIL.Image import Transpose

from glimpse.media.errors import MediaError, MediaErrorCode

Colour = tuple[int, int, int]

# EXIF's orientation → what makes the picture upright. 1 is upright.
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
_PALETTED = frozenset({"P", "PA"})
_SIDEWAYS = frozenset({Transpose.TRANSPOSE, Transpose.ROTATE_270, Transpose.TRANSVERSE, Transpose.ROTATE_90})
_CONVERTIBLE = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr"})


def is_sideways(image: PIL.Image.Image) -> bool:
    """Whether a picture changes its width for its height when it is turned upright; of some files known once loaded."""
    return _turn(image) in _SIDEWAYS


def upright_rgb(image: PIL.Image.Image, background: Colour) -> PIL.Image.Image:
    """Turns a loaded picture as its EXIF says, and makes it RGB; what is transparent shows `background`.

    An upright, opaque RGB picture is unchanged, bit for bit.

    Raises:
        MediaError: UNSUPPORTED_FORMAT for pixels that have no plain meaning as colours (floats, 32-bit integers);
            INVALID_MEDIA where their palette is missing.
    """
    turn = _turn(image)
    rgb = _to_rgb(image, background)
    return rgb if turn is None else rgb.transpose(turn)


def _turn(image: PIL.Image.Image) -> Transpose | None:
    try:
        return _TURNS.get(image.getexif().get(int(Base.Orientation), 1))
    except Exception:  # Pillow raises anything on damaged EXIF, and that alone is no reason to refuse a picture
        return None


def _to_rgb(image: PIL.Image.Image, background: Colour) -> PIL.Image.Image:
    if image.mode in _SIXTEEN_BIT_GREYS:
        # `convert` would clip at 255. Pillow keeps the high byte of 16-bit colours when it reads them: the same here.
        return PIL.Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode not in _CONVERTIBLE:
        message = f"pictures of this kind of pixel (Pillow's mode {image.mode}) are not decoded"
        raise MediaError(MediaErrorCode.UNSUPPORTED_FORMAT, message)
    if image.mode in _PALETTED and image.palette is None:
        raise MediaError(MediaErrorCode.INVALID_MEDIA, "the picture is damaged: it has no palette")
    if image.has_transparency_data:
        return _composite(image.convert("RGBA"), background)
    return image if image.mode == "RGB" else image.convert("RGB")


def _composite(image: PIL.Image.Image, background: Colour) -> PIL.Image.Image:
    canvas = PIL.Image.new("RGB", image.size, background)
    canvas.paste(image, mask=image.getchannel("A"))
    return canvas
