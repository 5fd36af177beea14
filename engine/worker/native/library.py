"""Loads the compiled kernels and declares their C signatures for ctypes, which releases the GIL during a call."""

import ctypes
import os
from collections.abc import Callable, Sequence
from ctypes import POINTER, c_float, c_int, c_int32, c_int64, c_void_p
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import ClassVar

# Imported before the library is opened, which then finds torch's OpenMP runtime by name and shares its threads.
import torch

from glimpse.engine.worker.native.compile_kernels import KERNELS
from glimpse.native.compiler import BuildError, build_library
from glimpse.native.processors import processor_vendor

LEVEL_VARIABLE = "GLIMPSE_CPU_LEVEL"
"""Environment variable with the level to use where no option names one. It has the name of the server's flag."""


class Level(IntEnum):
    """Instruction set levels, as in cpu.h, each with what the ones before it have; see also `fastest`."""

    AVX2 = 1
    AVX_VNNI = 2
    AVX512 = 3
    AVX512_VNNI = 4
    AVX512_BF16 = 5
    AMX = 6

    @property
    def option(self) -> str:
        """The level's name as a value of `--cpu-level`."""
        return self.name.lower()

    @property
    def title(self) -> str:
        """The level's name in messages, such as "AVX-512 BF16"."""
        return self.name.replace("AVX512", "AVX-512").replace("AVX_VNNI", "AVX-VNNI").replace("_", " ")


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
    """A packed matrix, as in types.h."""

    _fields_: ClassVar = [
        ("panels", c_void_p),
        ("scale", c_void_p),
        ("bias", c_void_p),
        ("in_features", c_int64),
        ("out_features", c_int64),
        ("gated", c_int64),
        ("group_scale", c_void_p),
        ("group_zero", c_void_p),
        ("group_size", c_int64),
        ("group_bits", c_int64),
        ("input_order", c_void_p),
        ("dtype", c_int32),
    ]


class Norm(ctypes.Structure):
    """A norm, as in types.h."""

    _fields_: ClassVar = [("weight", c_void_p), ("bias", c_void_p), ("eps", c_float), ("centered", c_int32)]


class OperationKind(IntEnum):
    """The kind of a recorded operation, as in program.h."""

    LINEAR = 0
    MLP = 1
    ROTATE = 2
    ATTEND = 3


class Operation(ctypes.Structure):
    """A recorded operation, as in program.h."""

    _fields_: ClassVar = [
        ("kind", c_int64),
        ("weight", POINTER(Weight)),
        ("second", POINTER(Weight)),
        ("norm", POINTER(Norm)),
        ("key_norm", POINTER(Norm)),
        ("x", c_void_p),
        ("residual", c_void_p),
        ("y", c_void_p),
        ("logits", c_void_p),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("activation", c_int64),
    ]


class Program(ctypes.Structure):
    """A recorded decode step, as in program.h."""

    _fields_: ClassVar = [
        ("operations", POINTER(Operation)),
        ("num_operations", c_int64),
        ("level", c_int64),
        ("dtype", c_int64),
        ("rows", c_int64),
        ("packed_embeddings", POINTER(Weight)),
        ("embeddings", c_void_p),
        ("hidden_size", c_int64),
        ("axes", c_void_p),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("block_size", c_int32),
        ("hidden", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
    ]


class DecodeInputs(ctypes.Structure):
    """The inputs of a recorded decode step, as in program.h."""

    _fields_: ClassVar = [
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("block_tables", c_void_p),
        ("query_lengths", POINTER(c_int64)),
        ("key_lengths", c_void_p),
        ("num_sequences", c_int64),
        ("table_width", c_int64),
        ("cos", c_void_p),
        ("sin", c_void_p),
    ]


class NativeError(Exception):
    """The native kernels cannot run on this machine; the message says why."""


SIGNATURES = {
    "glimpse_cpu_supports": ([c_int], c_int),
    "glimpse_set_num_threads": ([c_int], None),
    "glimpse_start_team": ([c_int], None),
    "glimpse_packed_bytes": ([POINTER(Weight)], c_int64),
    "glimpse_packed_columns": ([POINTER(Weight)], c_int64),
    "glimpse_packed_groups": ([POINTER(Weight)], c_int64),
    "glimpse_pack_groups": ([POINTER(Weight), *[c_void_p] * 4], None),
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
    "glimpse_rotate_and_store": (
        [c_int32, c_void_p, *[POINTER(Norm)] * 2, *[c_void_p] * 3, c_int64, *[c_int] * 4, *[c_void_p] * 3],
        None,
    ),
    "glimpse_paged_attention": ([c_int, c_int32, *[c_void_p] * 7, *[c_int] * 7, c_void_p], None),
    "glimpse_packed_attention": (
        [c_int, c_int32, *[c_void_p] * 3, *[c_int64] * 3, c_void_p, *[c_int] * 4, c_void_p],
        None,
    ),
    "glimpse_run_program": ([POINTER(Program), POINTER(DecodeInputs)], None),
    "glimpse_rotate": ([c_int32, *[c_void_p] * 3, c_int64, *[c_int] * 3], None),
}
"""Argument and result types of the functions in the C++ files."""


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
    for name, (argtypes, restype) in SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = argtypes, restype
    return library
