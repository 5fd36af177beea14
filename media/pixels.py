"""Pictures of 8-bit RGB as they lie in memory, used in place where that can be. Knows Pillow's memory and NumPy's."""

import ctypes
from ctypes import POINTER, c_int64, c_void_p
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import PIL.Image

RgbImage: TypeAlias = PIL.Image.Image | npt.NDArray[np.uint8]
"""Of mode RGB, or [height, width, 3]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pixels:
    """A picture's rows, the uppermost first, without gaps."""

    address: int
    width: int
    height: int
    pixel_bytes: int
    """3, or 4 of which the last one means nothing."""
    owner: object
    """As long as it lives they stay where they are."""


def size_of(picture: RgbImage) -> tuple[int, int]:
    """(height, width)"""
    return (picture.height, picture.width) if isinstance(picture, PIL.Image.Image) else picture.shape[:2]


def pixels_of(picture: RgbImage) -> Pixels:
    """Where a picture's pixels are, or those of a copy.

    Raises:
        ValueError: it is not one of 8-bit RGB.
    """
    if not isinstance(picture, PIL.Image.Image):
        return _pixels_of_array(picture)
    if picture.mode != "RGB":
        raise ValueError(f"the picture's mode is {picture.mode}, not RGB")
    return _pixels_in_place(picture) or _pixels_of_array(np.asarray(picture))


def _pixels_of_array(array: npt.NDArray[np.uint8]) -> Pixels:
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3:
        raise ValueError(f"the picture is {array.dtype} {list(array.shape)}, not uint8 [height, width, 3]")
    array = np.ascontiguousarray(array)
    height, width, _ = array.shape
    return Pixels(address=array.ctypes.data, width=width, height=height, pixel_bytes=3, owner=array)


class _ArrowArray(ctypes.Structure):
    """Of Arrow's C data interface, in which Pillow says where it has an image's pixels."""

    _fields_: ClassVar = [
        ("length", c_int64),
        ("null_count", c_int64),
        ("offset", c_int64),
        ("n_buffers", c_int64),
        ("n_children", c_int64),
        ("buffers", POINTER(c_void_p)),
        ("children", POINTER(c_void_p)),
        ("dictionary", c_void_p),
        ("release", c_void_p),
        ("private_data", c_void_p),
    ]


_capsule_pointer = ctypes.PYFUNCTYPE(c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _pixels_in_place(image: PIL.Image.Image) -> Pixels | None:
    """None: they lie in several pieces, as those of large images do."""
    try:
        _, capsule = image.__arrow_c_array__()
    except ValueError:
        return None
    # A list of pixels, whose one child are their bytes: four each, and the values are the second buffer.
    pixels = _ArrowArray.from_address(_capsule_pointer(capsule, b"arrow_array"))
    samples = _ArrowArray.from_address(pixels.children[0])
    if samples.length != image.width * image.height * 4:
        return None
    return Pixels(
        address=samples.buffers[1], width=image.width, height=image.height, pixel_bytes=4, owner=(capsule, image)
    )
