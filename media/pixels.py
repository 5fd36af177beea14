"""Zero-copy access to the pixels of 8-bit RGB images in Pillow and NumPy memory."""

import ctypes
from ctypes import POINTER, c_int64, c_void_p
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import PIL.Image

RgbImage: TypeAlias = PIL.Image.Image | npt.NDArray[np.uint8]
"""A Pillow image of mode RGB, or a uint8 array [height, width, 3]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pixels:
    """Rows of pixels in memory, top row first, without gaps."""

    address: int
    width: int
    height: int
    pixel_bytes: int
    """3, or 4 if each pixel ends with an unused byte."""
    owner: object
    """Keeps the memory alive."""


def image_size(image: RgbImage) -> tuple[int, int]:
    """Returns (height, width)."""
    return (image.height, image.width) if isinstance(image, PIL.Image.Image) else image.shape[:2]


def get_pixels(image: RgbImage) -> Pixels:
    """Returns the pixels of an image in place if they are contiguous, else those of a copy.

    Raises:
        ValueError: The image is not 8-bit RGB.
    """
    if not isinstance(image, PIL.Image.Image):
        return _array_pixels(image)
    if image.mode != "RGB":
        raise ValueError(f"expected an image of mode RGB, got {image.mode}")
    return _pixels_in_place(image) or _array_pixels(np.asarray(image))


def _array_pixels(array: npt.NDArray[np.uint8]) -> Pixels:
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3:
        raise ValueError(f"expected uint8 [height, width, 3], got {array.dtype} {list(array.shape)}")
    array = np.ascontiguousarray(array)
    height, width, _ = array.shape
    return Pixels(address=array.ctypes.data, width=width, height=height, pixel_bytes=3, owner=array)


class _ArrowArray(ctypes.Structure):
    """`ArrowArray` of Arrow's C data interface, through which Pillow exposes the address of an image's pixels."""

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
    """Returns None if the pixels are in several blocks, as those of large images are."""
    try:
        _, capsule = image.__arrow_c_array__()
    except ValueError:
        return None
    # A fixed-size list of four bytes for each pixel; its only child's second buffer has the values.
    pixels = _ArrowArray.from_address(_capsule_pointer(capsule, b"arrow_array"))
    samples = _ArrowArray.from_address(pixels.children[0])
    if samples.length != image.width * image.height * 4:
        return None
    return Pixels(
        address=samples.buffers[1], width=image.width, height=image.height, pixel_bytes=4, owner=(capsule, image)
    )
