"""A GPU's limits: memory copy rate and bfloat16 matrix product rate.

On a CPU `bench.engine.limits` measures instead.
"""

from collections.abc import Callable

import torch

from glimpse.engine.benchmark.limits import StepLimits, measure_limits
from glimpse.native.processors import usable_processors

_COPY_BYTES = 4 << 30
_SIDE = 8192
_REPEATS = 10


def device_limits(device: str) -> StepLimits:
    """Upper bounds for a step. A copy counts its bytes twice, read and written."""
    if device == "cpu":
        return measure_limits(num_threads=len(usable_processors()), repeats=1)
    source = torch.ones(_COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    left, right = (torch.randn(_SIDE, _SIDE, dtype=torch.bfloat16, device=device) for _ in range(2))
    return StepLimits(
        read_bytes_per_second=2 * _COPY_BYTES / _shortest_seconds(lambda: target.copy_(source)),
        flops_per_second=2 * _SIDE**3 / _shortest_seconds(lambda: left @ right),
    )


def device_name(device: str) -> str:
    """The device's name."""
    return torch.cuda.get_device_name() if device == "cuda" else "CPU"


def _shortest_seconds(act: Callable[[], object]) -> float:
    for _ in range(3):
        act()
    return min(_seconds(act) for _ in range(_REPEATS))


def _seconds(act: Callable[[], object]) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    act()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1000
