"""Compiles the loops of this folder and measures with them what memory and arithmetic units do at most."""

import ctypes
import mmap
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_int, c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from glimpse.engine.worker.native.library import Level, NativeError, machine_levels
from glimpse.native.compiler import BuildError, Sources, build_library

LOOPS = Sources(
    name="units", folder=Path(__file__).parent, flags=("-std=c++17", "-O3", "-fPIC"), variable="GLIMPSE_UNITS_LIBRARY"
)

_READ_BYTES = 1 << 30
"""Much larger than the caches."""
PATTERNS = ((1, 0), (4, 0), (1, 4096), (2, 2048), (4, 1024), (4, 4096), (8, 1024))
"""Streams per thread and distance of prefetches in bytes. Which one is fastest depends on the processor."""
_L1_BYTES = 16 << 10
_L2_BYTES = 512 << 10
_SECONDS = 0.02
"""Duration of one run of a loop: much longer than a thread takes to wake up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A kind of arithmetic unit."""

    name: str
    level: Level
    """The instruction set level that brings it."""
    function: str
    """The loop that keeps it busy."""
    operations: int
    """Operations in a turn of the loop; a multiply-add is two."""
    operand_bytes: int = 64
    """Operands that the loop reads in turn."""


FMA_256 = Unit(name="float32 FMA, 256 bits", level=Level.AVX2, function="units_fma_256", operations=12 * 8 * 2)
FMA_512 = Unit(name="float32 FMA, 512 bits", level=Level.AVX512, function="units_fma_512", operations=12 * 16 * 2)
INT8_256 = Unit(name="vpmaddubsw, 256 bits", level=Level.AVX2, function="units_int8_256", operations=12 * 32 * 2)
INT8_512 = Unit(name="vpmaddubsw, 512 bits", level=Level.AVX512, function="units_int8_512", operations=12 * 64 * 2)
VNNI_256 = Unit(name="vpdpbusd, 256 bits", level=Level.AVX_VNNI, function="units_vnni_256", operations=12 * 32 * 2)
VNNI_512 = Unit(name="vpdpbusd, 512 bits", level=Level.AVX512_VNNI, function="units_vnni_512", operations=12 * 64 * 2)
BF16_512 = Unit(name="vdpbf16ps, 512 bits", level=Level.AVX512_BF16, function="units_bf16_512", operations=12 * 32 * 2)
_TILES = 4 * 2 * 16 * 16 * 32
AMX_L1 = Unit(
    name="AMX bfloat16, L1", level=Level.AMX, function="units_amx_bf16", operations=_TILES, operand_bytes=_L1_BYTES
)
AMX_L2 = Unit(
    name="AMX bfloat16, L2", level=Level.AMX, function="units_amx_bf16", operations=_TILES, operand_bytes=_L2_BYTES
)
AMX_INT8 = Unit(
    name="AMX int8, L2", level=Level.AMX, function="units_amx_int8", operations=2 * _TILES, operand_bytes=_L2_BYTES
)
UNITS = (FMA_256, FMA_512, BF16_512, INT8_256, INT8_512, VNNI_256, VNNI_512, AMX_L1, AMX_L2, AMX_INT8)

FLOAT_UNITS = {
    Level.AVX2: FMA_256,
    Level.AVX_VNNI: FMA_256,
    Level.AVX512: FMA_512,
    Level.AVX512_VNNI: FMA_512,
    Level.AVX512_BF16: BF16_512,
    Level.AMX: AMX_L2,
}
"""The fastest units of each level for bfloat16 weights. AMX is held to its rate from L2, where a panel of weights comes
from; what L1 allows is out of reach of any product of large matrices."""
INTEGER_UNITS = {
    Level.AVX2: INT8_256,
    Level.AVX_VNNI: VNNI_256,
    Level.AVX512: INT8_512,
    Level.AVX512_VNNI: VNNI_512,
    Level.AVX512_BF16: VNNI_512,
    Level.AMX: AMX_INT8,
}
"""The fastest units of each level for int8 and int4 weights, if activations are rounded to int8 once."""


@cache
def load_loops() -> ctypes.CDLL:
    """Returns the compiled loops. Raises BuildError or OSError."""
    library = ctypes.CDLL(str(build_library(LOOPS, lambda _stage: None)))
    library.units_read.argtypes, library.units_read.restype = [c_void_p, c_int64, c_int, c_int64], c_uint64
    for unit in UNITS:
        function = getattr(library, unit.function)
        function.argtypes, function.restype = [c_int64, c_void_p, c_int64], None
    return library


def unit_levels() -> list[Level]:
    """Returns the levels that can be measured on this machine, the fastest last; none without a compiler or AVX2."""
    try:
        levels = machine_levels()
        load_loops()
    except (NativeError, BuildError, OSError):
        return []
    return levels


def read_rate(*, num_threads: int, repeats: int, num_bytes: int = _READ_BYTES) -> float:
    """Returns the bytes per second that all threads read from memory together: the best of all patterns and repeats.

    The array of `num_bytes` on huge pages is kept. Needs a level in `unit_levels`.
    """
    library, begin = load_loops(), _large_array(num_bytes).ctypes.data
    part = num_bytes // num_threads // 4096 * 4096

    def read(pattern: tuple[int, int]) -> float:
        starts = (begin + thread * part for thread in range(num_threads))
        return _seconds([partial(library.units_read, start, part, *pattern) for start in starts])

    return part * num_threads / min(read(pattern) for _ in range(repeats) for pattern in PATTERNS)


def unit_rate(unit: Unit, *, num_threads: int, repeats: int) -> float:
    """Returns the operations per second of all threads together: the best of all repeats.

    The machine must have the unit's level: other processors end the process.
    """
    function = getattr(load_loops(), unit.function)
    # 1.0 as bfloat16 twice, which is 1.002 as float32 and four small numbers as int8. Aligned to pages.
    operands = [mmap.mmap(-1, max(unit.operand_bytes, mmap.PAGESIZE)) for _ in range(num_threads)]
    views = [np.frombuffer(each, dtype=np.uint16) for each in operands]
    for view in views:
        view[:] = 0x3F80

    def seconds(turns: int) -> float:
        return _seconds([partial(function, turns, view.ctypes.data, unit.operand_bytes) for view in views])

    turns = 1000
    while seconds(turns) < _SECONDS:
        turns *= 2
    return turns * num_threads * unit.operations / min(seconds(turns) for _ in range(repeats))


def _seconds(tasks: Sequence[Callable[[], object]]) -> float:
    """Returns the seconds that the tasks take together, each on a thread of its own."""
    pool = _threads(len(tasks))
    begun = time.perf_counter()
    for future in [pool.submit(task) for task in tasks]:
        future.result()
    return time.perf_counter() - begun


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count)


@cache
def _large_array(num_bytes: int) -> npt.NDArray[np.int64]:
    memory = mmap.mmap(-1, num_bytes)
    memory.madvise(mmap.MADV_HUGEPAGE)
    words = np.frombuffer(memory, dtype=np.int64)
    words[:] = 1
    return words
