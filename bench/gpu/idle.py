"""Idle time of a GPU between the kernels of steady decoding, from the profiler's trace."""

from collections.abc import Iterable

from torch.profiler import ProfilerActivity, profile

from glimpse.engine.core.core import Core

_NUM_STEPS = 50


def idle_share(intervals: Iterable[tuple[float, float]]) -> float:
    """Returns the share of the time from the first start to the last end in which no kernel runs."""
    ordered = sorted(intervals)
    first = last = ordered[0][0]
    idle = 0.0
    for start, end in ordered:
        idle += max(0.0, start - last)
        last = max(last, end)
    return idle / (last - first)


def decode_idle_share(core: Core) -> float:
    """Measures a core that only decodes, over fifty steps.

    Raises:
        RuntimeError: the profiler saw no kernel; there is no GPU, or profiling is not permitted.
    """
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        for _ in range(_NUM_STEPS):
            core.step()
    kernels = [
        (event.time_range.start, event.time_range.end)
        for event in trace.events() or ()
        if event.device_type.name == "CUDA"
    ]
    if not kernels:
        raise RuntimeError("the profiler saw no kernel")
    return idle_share(kernels)
