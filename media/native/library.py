"""Loads the compiled resampler and declares its C signature for ctypes, which releases the GIL during a call."""

import ctypes
import logging
import os
from ctypes import c_int, c_int64, c_void_p
from enum import IntEnum
from functools import cache
from pathlib import Path
from threading import Lock

import numpy as np
import numpy.typing as npt
from PIL.Image import Resampling

from glimpse.media.native.compile_resampler import KERNELS
from glimpse.media.pixels import Pixels
from glimpse.native.compiler import BuildError, build_library

NO_LIBRARY = "none"
"""Value of the environment variable that disables the library."""

RESAMPLINGS = frozenset({Resampling.LANCZOS, Resampling.BILINEAR, Resampling.BICUBIC})
"""The filters of the library, by Pillow's numbers."""

_LARGEST_SIDE = 1 << 24
"""Largest side that float32 represents exactly, because Pillow converts sides to float."""
_log = logging.getLogger(__name__)
_lock = Lock()


class ResizerLevel(IntEnum):
    """Instruction set levels, as in kernels.h. A processor also runs the lower levels of its architecture."""

    AVX2 = 1
    AVX512 = 2
    NEON = 3


class Resizer:
    """The compiled resampler at an instruction set level of this machine."""

    def __init__(self, path: Path, level: ResizerLevel | None = None) -> None:
        """
        Args:
            level: instruction set level; None for the machine's highest. Tests pass lower ones.

        Raises:
            OSError: the library cannot be opened.
            BuildError: the processor supports none of the levels.
        """
        library = ctypes.CDLL(str(path))
        self.path = path
        self.level = ResizerLevel(level or _machine_level(library))
        self._resize = library.glimpse_resize
        self._resize.argtypes = [c_int, c_int, c_void_p, c_int64, c_int64, c_int64, c_void_p, c_int64, c_int64]

    def resize(self, pixels: Pixels, into: npt.NDArray[np.uint8], resampling: Resampling = Resampling.BICUBIC) -> None:
        """Resizes an image to `into`, [height, width, 3], with one of Pillow's filters: bilinear, bicubic or Lanczos.

        Raises:
            ValueError: `into` is not a contiguous array of this shape, a side is 0 or too long, or it is another
                filter.
            MemoryError: memory is exhausted.
        """
        if into.dtype != np.uint8 or into.ndim != 3 or into.shape[2] != 3 or not into.flags.carray:
            raise ValueError("'into': expected a contiguous writeable uint8 array [height, width, 3]")
        if resampling not in RESAMPLINGS:
            raise ValueError(f"'resampling': expected bilinear, bicubic or Lanczos, got {resampling!r}")
        height, width, _ = into.shape
        sides = (pixels.width, pixels.height, width, height)
        if not 1 <= min(sides) <= max(sides) <= _LARGEST_SIDE:
            raise ValueError(f"expected sides from 1 to {_LARGEST_SIDE} pixels, got {sides}")
        source = (pixels.address, pixels.width, pixels.height, pixels.pixel_bytes)
        if self._resize(self.level, resampling, *source, into.ctypes.data, width, height):
            raise MemoryError


@cache
def native_resizer() -> Resizer | None:
    """Returns the resampler, compiled now unless it is cached. Returns None and logs why if it is unavailable."""
    with _lock:  # one thread compiles, the others use its result
        try:
            if os.environ.get(KERNELS.variable) == NO_LIBRARY:
                return None
            return Resizer(build_library(KERNELS, _log.info))
        except (BuildError, OSError, AttributeError) as error:  # AttributeError: not a library of this program
            _log.warning("resizing images with Pillow, which is slower: %s", error)
            return None


def environment_for_workers() -> dict[str, str]:
    """Returns environment variables for child processes to use the same library. May compile it in this process."""
    resizer = native_resizer()
    return {KERNELS.variable: str(resizer.path) if resizer is not None else NO_LIBRARY}


def _machine_level(library: ctypes.CDLL) -> int:
    level = library.glimpse_resize_level()
    if not level:
        raise BuildError("the processor does not support AVX2")
    return level
