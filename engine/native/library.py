"""The compiled kernels as Python functions. Knows the C signatures and the processor's level, not what is computed.

ctypes releases the interpreter's lock during a call.
"""

import ctypes
from collections.abc import Callable
from ctypes import POINTER, c_float, c_int, c_int32, c_int64, c_void_p
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import ClassVar

# Before our library is opened: it finds torch's OpenMP runtime by name, so one pool of threads serves both.
import torch  # noqa: F401 # pyright: ignore[reportUnusedImport]

from glimpse.engine.native.compile_kernels import KERNELS
from glimpse.native.compiler import BuildError, build_library


class Level(IntEnum):
    """What the processor can do, as in cpu.h. Kernels of a lower level run on it too."""

    AVX2 = 1
    AVX512_BF16 = 2
    AMX = 3


class Activation(IntEnum):
    """What follows a product, as in types.h."""

    IDENTITY = 0
    GATED_SILU = 1
    QUICK_GELU = 2


class Weight(ctypes.Structure):
    """A packed matrix, as in types.h."""

    _fields_: ClassVar = [
        ("panels", c_void_p),
        ("scale", c_void_p),
        ("bias", c_void_p),
        ("in_features", c_int64),
        ("out_features", c_int64),
        ("gated", c_int64),
    ]


class Norm(ctypes.Structure):
    """A normalisation, as in types.h."""

    _fields_: ClassVar = [("weight", c_void_p), ("bias", c_void_p), ("eps", c_float), ("centered", c_int32)]


class NativeError(Exception):
    """The native kernels cannot run on this machine; the message says why."""


SIGNATURES = {
    "glimpse_packed_bytes": ([POINTER(Weight)], c_int64),
    "glimpse_packed_columns": ([POINTER(Weight)], c_int64),
    "glimpse_advise_huge_pages": ([c_void_p, c_int64], None),
    "glimpse_return_freed_memory": ([], None),
    "glimpse_pack": ([POINTER(Weight), c_void_p], None),
    "glimpse_pack_columns": ([POINTER(Weight), c_void_p, c_void_p], None),
    "glimpse_unpack_rows": ([POINTER(Weight), c_void_p, c_int64, c_void_p], None),
    "glimpse_linear": (
        [c_int, POINTER(Weight), POINTER(Norm), c_void_p, c_int64, c_int32, c_void_p, c_void_p, c_void_p],
        None,
    ),
    "glimpse_mlp": (
        [c_int, POINTER(Weight), POINTER(Weight), POINTER(Norm), c_void_p, c_int64, c_int32, c_void_p, c_void_p],
        None,
    ),
}
"""Of linear.cpp and pack.cpp: the arguments' types and the result's."""


def load_library(on_progress: Callable[[str], None] = lambda _stage: None) -> ctypes.CDLL:
    """The kernels, compiled now if they have not been on this machine.

    Raises:
        NativeError: they cannot be compiled.
    """
    try:
        return _open(build_library(KERNELS, on_progress))
    except (BuildError, OSError) as error:
        raise NativeError(str(error)) from error


def machine_level(on_progress: Callable[[str], None] = lambda _stage: None) -> Level:
    """The highest level of this machine.

    Raises:
        NativeError: the kernels cannot be compiled, or the processor has none of the levels.
    """
    level = load_library(on_progress).glimpse_cpu_level()
    if not level:
        raise NativeError("the processor has no AVX2")
    return Level(level)


@cache
def _open(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    for name, (argtypes, restype) in SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = argtypes, restype
    return library
