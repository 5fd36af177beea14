"""Loads the compiled kernels for ctypes, which releases the GIL during a call."""

import ctypes
import os
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import cache
from pathlib import Path

# Imported before the library is opened, which then finds torch's OpenMP runtime by name and shares its threads.
import torch

from glimpse.engine.worker.native.compile_kernels import KERNELS
from glimpse.engine.worker.native.declarations import Declarations
from glimpse.native.compiler import BuildError, build_library
from glimpse.native.processors import processor_vendor

LEVEL_VARIABLE = "GLIMPSE_CPU_LEVEL"
"""Environment variable with the level to use where no option names one. It has the name of the server's flag."""


class Level(IntEnum):
    """Instruction set levels, as in cpu.h, each with what those before it of its architecture have; see `fastest`."""

    AVX2 = 1
    AVX_VNNI = 2
    AVX512 = 3
    AVX512_VNNI = 4
    AVX512_BF16 = 5
    AMX = 6
    NEON = 7
    NEON_DOTPROD = 8
    NEON_I8MM = 9
    NEON_BF16 = 10

    @property
    def option(self) -> str:
        """The level's name as a value of `--cpu-level`."""
        return self.name.lower()

    @property
    def title(self) -> str:
        """The level's name in messages, such as "AVX-512 BF16"."""
        name = self.name.replace("AVX512", "AVX-512").replace("AVX_VNNI", "AVX-VNNI").replace("DOTPROD", "dotprod")
        return name.replace("_", " ")


def multiplies_tiles(level: Level | None, dtype: torch.dtype) -> bool:
    """Returns whether products of unquantized weights are those of tiles, with activations of this type."""
    return level is Level.AMX and dtype is torch.bfloat16


class DType(IntEnum):
    """The type of activations, and of weights that are not quantized, as in types.h."""

    BFLOAT16 = 0
    FLOAT32 = 1

    @classmethod
    def of(cls, dtype: torch.dtype) -> "DType":
        """
        Raises:
            KeyError: the kernels do not compute with this type.
        """
        return _DTYPES[dtype]


_DTYPES = {torch.bfloat16: DType.BFLOAT16, torch.float32: DType.FLOAT32}


class Activation(IntEnum):
    """The activation after a product, as in types.h."""

    IDENTITY = 0
    GATED_SILU = 1
    QUICK_GELU = 2
    GELU_TANH = 3
    GATED_GELU_TANH = 4


class Weight(ctypes.Structure):
    """A packed matrix; types.h says what its fields are."""


class Norm(ctypes.Structure):
    """A norm; types.h says what its fields are."""


class Experts(ctypes.Structure):
    """A mixture of experts; linear.h says what its fields are."""


class DeltaNetLayer(ctypes.Structure):
    """The weights of a gated delta net; delta_net.h says what its fields are."""


class ShortConvLayer(ctypes.Structure):
    """The weights of a gated short convolution; short_conv.h says what its fields are."""


class LowRankPart(ctypes.Structure):
    """A part of what an adapter adds to a linear; kernels.h says what its fields are."""


class LowRank(ctypes.Structure):
    """What an adapter adds to a linear; kernels.h says what its fields are."""


class LowRanks(ctypes.Structure):
    """What all adapters add to a linear; adaptation.h says what its fields are."""


class RowAdapters(ctypes.Structure):
    """Rows with adapters; adaptation.h says what its fields are."""


class Operation(ctypes.Structure):
    """A recorded operation; program.cpp says what its fields are."""


class Program(ctypes.Structure):
    """A recorded decode step; program.cpp says what its fields are."""


class DecodeInputs(ctypes.Structure):
    """The inputs of a recorded decode step; program.cpp says what its fields are."""


STRUCTURES = (
    Weight,
    Norm,
    Experts,
    DeltaNetLayer,
    ShortConvLayer,
    LowRankPart,
    LowRank,
    LowRanks,
    RowAdapters,
    Operation,
    Program,
    DecodeInputs,
)
"""In the order of `glimpse_structure_bytes`."""
DECLARATIONS = Declarations(KERNELS.folder, STRUCTURES)
"""What the library has."""


class NativeError(Exception):
    """The native kernels cannot run on this machine; the message says why."""


def load_library(on_progress: Callable[[str], None] = lambda _stage: None) -> ctypes.CDLL:
    """Returns the kernels, compiled now unless they are cached.

    Raises:
        NativeError: they cannot be compiled, or a library that was compiled ahead of time is not of this version.
    """
    try:
        return _open(build_library(KERNELS, on_progress))
    except (BuildError, OSError) as error:
        raise NativeError(str(error)) from error
    except AttributeError as error:
        raise NativeError(f"the library is of another version, compile it again: {error}") from error


def machine_levels(on_progress: Callable[[str], None] = lambda _stage: None) -> list[Level]:
    """Returns the instruction set levels of this machine, in their order.

    Raises:
        NativeError: the kernels cannot be compiled, or the processor supports none of the levels.
    """
    library = load_library(on_progress)
    levels = [level for level in Level if library.glimpse_cpu_supports(level)]
    if not levels:
        raise NativeError("the processor does not support AVX2, FMA and F16C")
    return levels


def choose_level(option: str = "auto") -> Level:
    """Returns the instruction set level to compute with.

    Args:
        option: a level's name; "auto" for the one that the environment variable names, else the machine's fastest.

    Raises:
        NativeError: this machine does not have the level, or as for `machine_levels`.
    """
    levels = machine_levels()
    source = "--cpu-level"
    if option == "auto":
        source, option = LEVEL_VARIABLE, os.environ.get(LEVEL_VARIABLE) or "auto"
    if option == "auto":
        return fastest(levels, processor_vendor())
    for level in levels:
        if level.option == option:
            return level
    known = ", ".join(level.option for level in levels)
    raise NativeError(f"{source}: expected auto or a level of this processor ({known}), got {option}")


def fastest(levels: Sequence[Level], vendor: str) -> Level:
    """Returns the level to compute with: the last one, except on Intel's processors with AVX-512 BF16 and without AMX.

    There (Cooper Lake, or where a virtual machine hides AMX) vdpbf16ps multiplies half as many numbers in a second as
    float32's FMA; on AMD's twice as many (bench/results/engine.md).

    Args:
        levels: the machine's, in their order.
        vendor: as `processor_vendor` returns it.
    """
    if levels[-1] is Level.AVX512_BF16 and vendor == "GenuineIntel":
        return Level.AVX512_VNNI
    return levels[-1]


@cache
def _open(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    for name, argtypes, restype in DECLARATIONS.functions():
        function = getattr(library, name)
        function.argtypes, function.restype = argtypes, restype
    for index, structure in enumerate(STRUCTURES):
        if (num_bytes := library.glimpse_structure_bytes(index)) != ctypes.sizeof(structure):
            raise AttributeError(f"{structure.__name__}: expected {ctypes.sizeof(structure)} bytes, got {num_bytes}")
    return library
