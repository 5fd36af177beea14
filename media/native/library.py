"""The compiled resampling as a Python function. Knows the C signatures and the processor's level.

ctypes releases the interpreter's lock during a call.
"""

import ctypes
import logging
from ctypes import c_int, c_int64, c_void_p
from enum import IntEnum
from functools import cache
from pathlib import Path
from threading import Lock

import numpy as np
import numpy.typing as npt

from glimpse.media.native.compile_resampler import KERNELS
from glimpse.media.pixels import Pixels
from glimpse.native.compiler import BuildError, build_library

NO_LIBRARY = "none"
"""In the place of a library's name in the environment: nothing is compiled or opened."""

_LARGEST_SIDE = 1 << 24
"""Whole numbers up to this one are floats, which Pillow makes of sides."""
_log = logging.getLogger(__name__)
_lock = Lock()


class Level(IntEnum):
    """What the processor can do, as in resize.cpp. What runs on one level runs on a higher one too."""

    AVX2 = 1
    AVX512 = 2


class Resizer:
    """Compiled resampling, at a level that this machine has."""

    def __init__(self, path: Path, level: Level | None = None) -> None:
        """
        Args:
            path: Of the library.
            level: None takes the machine's. A lower one is for tests.

        Raises:
            OSError: it cannot be opened.
            BuildError: the processor has none of the levels.
        """
        library = ctypes.CDLL(str(path))
        self.path = path
        self.level = Level(level or _machine_level(library))
        self._resize = library.glimpse_resize
        self._resize.argtypes = [c_int, c_void_p, c_int64, c_int64, c_int64, c_void_p, c_int64, c_int64]

    def resize(self, pixels: Pixels, into: npt.NDArray[np.uint8]) -> None:
        """Fills `into`, [height, width, 3], with what Pillow's bicubic filter makes of a picture.

        Raises:
            ValueError: it is no such array in one piece, or a side is 0 or too long.
            MemoryError: there is too little.
        """
        if into.dtype != np.uint8 or into.ndim != 3 or into.shape[2] != 3 or not into.flags.carray:
            raise ValueError("the result is to be uint8 [height, width, 3], in one piece and writeable")
        height, width, _ = into.shape
        sides = (pixels.width, pixels.height, width, height)
        if not 1 <= min(sides) <= max(sides) <= _LARGEST_SIDE:
            raise ValueError(f"sides are within 1 … {_LARGEST_SIDE} pixels, not {sides}")
        if self._resize(self.level, pixels.address, *sides[:2], pixels.pixel_bytes, into.ctypes.data, width, height):
            raise MemoryError


@cache
def native_resizer() -> Resizer | None:
    """This machine's; compiled now if it has not been on this machine. None where it cannot be: the log says why."""
    with _lock:  # one of several threads compiles, the others find what it made
        try:
            path = build_library(KERNELS, _log.info)
            return None if str(path) == NO_LIBRARY else Resizer(path)
        except (BuildError, OSError, AttributeError) as error:  # the last: a library, but of other things
            _log.warning("pictures are resized by Pillow, which takes longer: %s", error)
            return None


def environment_for_workers() -> dict[str, str]:
    """Of the environment in which other processes have the same without compiling anything; may compile it here."""
    resizer = native_resizer()
    return {KERNELS.variable: str(resizer.path) if resizer is not None else NO_LIBRARY}


def _machine_level(library: ctypes.CDLL) -> int:
    level = library.glimpse_resize_level()
    if not level:
        raise BuildError("the processor has no AVX2")
    return level
