"""The machine's limits: memory read rate of all threads, and bfloat16 matrix product rate.

Takes the fastest of several methods and sizes, and the shortest of several times, since other programs only slow it
down.
"""

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

_READ_BYTES = 1 << 30
"""Much larger than the caches."""
_MATRIX_SHAPES = ((512, 896, 4864), (2048, 896, 4864), (1024, 1024, 1024), (2048, 2048, 2048), (1024, 4096, 4096))
"""rows, inner, columns"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Upper bounds for a step."""

    read_bytes_per_second: float
    flops_per_second: float
    """Operations per second of a bfloat16 matrix product; a multiply-add is two."""

    def __str__(self) -> str:
        read, matrix = self.read_bytes_per_second / 1e9, self.flops_per_second / 1e12
        return f"{read:.1f} GB/s read, {matrix:.2f} TFLOP/s in bfloat16"


def best(*measured: Limits) -> Limits:
    """Combines several measurements on a shared machine."""
    return Limits(
        read_bytes_per_second=max(each.read_bytes_per_second for each in measured),
        flops_per_second=max(each.flops_per_second for each in measured),
    )


def measure_limits(*, num_threads: int, repeats: int = 5) -> Limits:
    """Measures the limits; takes seconds and 1 GiB."""
    torch.set_num_threads(num_threads)
    return Limits(
        read_bytes_per_second=_READ_BYTES / min(_read_seconds(num_threads, repeats)),
        flops_per_second=max(_matrix_rate(*shape, repeats) for shape in _MATRIX_SHAPES),
    )


def shortest_seconds(act: Callable[[], object], repeats: int) -> float:
    """Returns the shortest of several times, after a warm-up."""
    act()
    return min(_seconds(act) for _ in range(repeats))


def _seconds(act: Callable[[], object]) -> float:
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def _read_seconds(num_threads: int, repeats: int) -> tuple[float, float]:
    """Measures the read rate with torch's threads and with our own."""
    words = np.ones(_READ_BYTES // 8, dtype=np.int64)
    tensor = torch.from_numpy(words)
    parts = np.array_split(words, num_threads)
    with ThreadPoolExecutor(num_threads) as threads:
        own = shortest_seconds(lambda: list(threads.map(np.bitwise_or.reduce, parts)), repeats)
    return shortest_seconds(tensor.sum, repeats), own


def _matrix_rate(rows: int, inner: int, columns: int, repeats: int) -> float:
    left = torch.randn(rows, inner, dtype=torch.bfloat16)
    right = torch.randn(columns, inner, dtype=torch.bfloat16)
    times = math.ceil(2e10 / (2 * rows * inner * columns))  # some ten milliseconds in all

    def multiply() -> None:
        for _ in range(times):
            torch.nn.functional.linear(left, right)

    return times * 2 * rows * inner * columns / shortest_seconds(multiply, repeats)
