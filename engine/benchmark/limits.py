"""The machine's limits: memory read rate and arithmetic rate of all threads, measured by loops in C++.

Each rate is the best of several runs, since other programs only slow them down. Without a compiler or AVX2, torch's
fastest read and bfloat16 product stand in.

`python -m glimpse.engine.benchmark.limits` writes a `LimitsReport` as JSON, for `glimpse bench`, which loads no torch.
"""

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import torch

from glimpse.engine.benchmark.messages import LimitsReport
from glimpse.engine.benchmark.units.library import FLOAT_UNITS, INTEGER_UNITS, read_rate, unit_levels, unit_rate
from glimpse.engine.worker.loading.cpu_topology import default_num_threads
from glimpse.engine.worker.native.library import Level
from glimpse.interrupts import exit_on_interrupt
from glimpse.native.processors import cpu_quota, usable_processors

_READ_BYTES = 1 << 30
"""Much larger than the caches."""
_MATRIX_SHAPES = ((512, 896, 4864), (2048, 896, 4864), (1024, 1024, 1024), (2048, 2048, 2048), (1024, 4096, 4096))
"""rows, inner, columns"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimits:
    """Upper bounds for a step."""

    read_bytes_per_second: float
    flops_per_second: float
    """Operations per second of the units that multiply the weights; a multiply-add is two."""
    units: str = "bfloat16 matrix products"
    """What these units are."""

    def __str__(self) -> str:
        read, rate = self.read_bytes_per_second / 1e9, self.flops_per_second / 1e12
        return f"{read:.1f} GB/s read, {rate:.2f} TFLOP/s ({self.units})"


def best(*measured: StepLimits) -> StepLimits:
    """Combines several measurements of the same units on a shared machine."""
    return StepLimits(
        read_bytes_per_second=max(each.read_bytes_per_second for each in measured),
        flops_per_second=max(each.flops_per_second for each in measured),
        units=measured[0].units,
    )


def measure_limits(
    *, num_threads: int, level: Level | None = None, integers: bool = False, repeats: int = 5
) -> StepLimits:
    """Measures the limits; takes seconds and 1 GiB.

    Args:
        level: instruction set level whose units count; None for the machine's highest.
        integers: hold products to the units that multiply integers, not to those that multiply floats.

    Raises:
        ValueError: this machine does not have the level.
    """
    levels = unit_levels()
    if level is not None and level not in levels:
        raise ValueError(f"level: expected one of {[each.name for each in levels]}, got {level.name}")
    if not levels:
        return torch_limits(num_threads, repeats)
    unit = (INTEGER_UNITS if integers else FLOAT_UNITS)[level or levels[-1]]
    return StepLimits(
        read_bytes_per_second=read_rate(num_threads=num_threads, repeats=repeats),
        flops_per_second=unit_rate(unit, num_threads=num_threads, repeats=repeats),
        units=unit.name,
    )


def engine_threads() -> int:
    """Returns the threads of an engine on this machine."""
    return max(1, default_num_threads(usable_processors(), cpu_quota()))


def shortest_seconds(act: Callable[[], object], repeats: int) -> float:
    """Returns the shortest of several times, after a warm-up."""
    act()
    return min(_seconds(act) for _ in range(repeats))


def torch_limits(num_threads: int, repeats: int) -> StepLimits:
    """Measures what torch reads and multiplies."""
    torch.set_num_threads(num_threads)
    words = torch.ones(_READ_BYTES // 8, dtype=torch.int64)
    return StepLimits(
        read_bytes_per_second=_READ_BYTES / shortest_seconds(words.sum, repeats),
        flops_per_second=max(_matrix_rate(*shape, repeats) for shape in _MATRIX_SHAPES),
        units="torch's bfloat16 products",
    )


def _seconds(act: Callable[[], object]) -> float:
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def _matrix_rate(rows: int, inner: int, columns: int, repeats: int) -> float:
    left = torch.randn(rows, inner, dtype=torch.bfloat16)
    right = torch.randn(columns, inner, dtype=torch.bfloat16)
    times = math.ceil(2e10 / (2 * rows * inner * columns))  # some ten milliseconds in all

    def multiply() -> None:
        for _ in range(times):
            torch.nn.functional.linear(left, right)

    return times * 2 * rows * inner * columns / shortest_seconds(multiply, repeats)


def main() -> None:
    """Writes the report to standard output."""
    exit_on_interrupt()
    num_threads = engine_threads()
    limits = measure_limits(num_threads=num_threads)
    report = LimitsReport(
        num_threads=num_threads,
        read_bytes_per_second=limits.read_bytes_per_second,
        flops_per_second=limits.flops_per_second,
        units=limits.units,
    )
    sys.stdout.buffer.write(msgspec.json.encode(report))


if __name__ == "__main__":
    main()
