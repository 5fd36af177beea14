"""Media files as callers have them: paths, URLs, bytes, uploads, images of Pillow and NumPy."""

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

from glimpse.client.png import GREY, RGB, RGBA, encode_png
from glimpse.v1 import content_pb2, media_pb2

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from PIL.Image import Exif
    from PIL.Image import Image as PillowImage

_URL_SCHEMES = ("http://", "https://", "data:", "file://")
_PNG_MODES = frozenset({"1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16"})
_CONVERSIONS = {"PA": ("RGBA",), "RGBa": ("RGBA",), "La": ("LA",), "I;16B": ("I", "I;16")}
"""Pillow's modes with more than RGB → how they are converted. The others become RGB, unless PNG has them."""
_ORIENTATION = 0x0112
"""EXIF's tag."""
_COLOUR_TYPES = {3: RGB, 4: RGBA}
"""By channels."""

File: TypeAlias = "str | os.PathLike[str] | bytes | media_pb2.Media"
"""A media file: a path, a URL (http, https, data or file), its bytes, or an upload (`Client.upload`)."""
ImageFile: TypeAlias = "File | PillowImage | npt.NDArray[np.uint8]"
"""Such a source, or an image of Pillow's or of NumPy, uint8 [height, width, 3 or 4] or [height, width], sent as PNG."""


def read_file(source: ImageFile) -> bytes:
    """Returns the bytes of a path, of bytes, or of a Pillow image as PNG. Raises OSError, ValueError."""
    match source:
        case bytes():
            return source
        case media_pb2.Media():
            raise ValueError("'source': expected a path, bytes or an image, got an upload")
        case str() if source.startswith(_URL_SCHEMES):
            raise ValueError("'source': expected a path, bytes or an image, got a URL")
        case str() | os.PathLike():
            return Path(source).read_bytes()
        case _ if hasattr(source, "__array_interface__") and not hasattr(source, "save"):
            return _encode_array(cast("npt.NDArray[np.uint8]", source))
        case _ if hasattr(source, "save"):
            return _encode_png(cast("PillowImage", source))
        case _:
            raise TypeError(f"'source': expected a path, URL, bytes or an image, got {type(source).__name__}")


def to_source(source: "ImageFile | None") -> content_pb2.MediaSource | None:
    """Returns the source of a media input. None, for media that the server has cached, stays None. Raises OSError."""
    match source:
        case None:
            return None
        case media_pb2.Media():
            return content_pb2.MediaSource(upload_id=source.upload_id)
        case str() if source.startswith(_URL_SCHEMES):
            return content_pb2.MediaSource(url=source)
        case _:
            return content_pb2.MediaSource(data=read_file(source))


def _encode_array(array: "npt.NDArray[np.uint8]") -> bytes:
    """Returns an image as PNG. Raises TypeError for another type or shape."""
    channels = array.shape[-1] if array.ndim == 3 else 1
    if array.dtype != "uint8" or array.ndim not in (2, 3) or (array.ndim == 3 and channels not in _COLOUR_TYPES):
        shape = "[height, width, 3 or 4] or [height, width]"
        raise TypeError(f"'source': expected a uint8 array {shape}, got {array.dtype} {list(array.shape)}")
    height, width = array.shape[:2]
    colour_type = GREY if array.ndim == 2 else _COLOUR_TYPES[channels]
    return encode_png((row.tobytes() for row in array), width=width, height=height, colour_type=colour_type)


def _encode_png(image: "PillowImage") -> bytes:
    """Returns an image as PNG, with the orientation of its EXIF data, and nothing else of it."""
    file, exif = io.BytesIO(), _orientation_only(image)
    for mode in () if image.mode in _PNG_MODES else _CONVERSIONS.get(image.mode, ("RGB",)):
        image = image.convert(mode)
    image.save(file, "PNG", compress_level=1, exif=exif)
    return file.getvalue()


def _orientation_only(image: "PillowImage") -> "Exif | None":
    """Returns the image's EXIF data without what is not its orientation; None without one."""
    try:
        exif = image.getexif()
        orientation = exif.get(_ORIENTATION)
    except Exception:  # Pillow raises any exception for corrupt EXIF, which alone is no reason not to send an image
        return None
    if orientation is None:
        return None
    kept = type(exif)()
    kept[_ORIENTATION] = orientation
    return kept
