"""Finds how far ahead the kernels prefetch weights, by computing with a model's own.

A processor that follows weights by itself is slowed by prefetches; one that stops at the end of each page of memory
needs them, and some do while they compute with several rows (bench/results/engine.md has all three).
"""

import logging
import os
import time
from collections.abc import Mapping, Sequence
from ctypes import CDLL
from itertools import accumulate, takewhile
from operator import truediv
from statistics import median

import torch
from torch import nn

from glimpse.engine.errors import CheckpointError
from glimpse.engine.worker.native.linear import PackedLinear

_log = logging.getLogger(__name__)

VARIABLE = "GLIMPSE_PREFETCH_BYTES"
"""Environment variable with the distance to use; 0 for no prefetches. Without, it is measured."""
DISTANCES = (0, 4096, 8192, 16384)
ROWS = (1, 8)
"""Rows of products whose distance is measured: bound by the memory, and as much by what they compute."""
_MEASURED_BYTES = 256 << 20
"""Weights that are read in each round: more than caches hold."""
_LEAST_BYTES = 64 << 20
"""Fewer weights stay in caches, where no distance matters."""
_ROUNDS = 7
_WORTHWHILE = 0.97
"""A distance is preferred to shorter ones if the time is less than this share of theirs."""


def set_prefetching(model: nn.Module, library: CDLL) -> Sequence[int]:
    """Sets the distances for this process, and returns them in bytes, as `ROWS`. Measuring takes up to a second.

    Raises:
        CheckpointError: the environment variable has no number of bytes.
    """
    forced, linears = os.environ.get(VARIABLE), measured_linears(model)
    if forced and not forced.isdecimal():
        raise CheckpointError(f"{VARIABLE}: expected a number of bytes, such as 4096, or 0, got {forced}")
    distances = []
    for rows in ROWS:
        read = [linear for linear in linears if rows <= linear.streamed_rows]
        distance = int(forced) if forced else fastest(_measured(read, library, rows)) if read else DISTANCES[0]
        library.glimpse_set_prefetch(rows, distance)
        distances.append(distance)
    if forced or linears:
        _log.info("weights are prefetched %d bytes ahead, %d for several rows", *distances)
    return distances


def measured_linears(model: nn.Module) -> Sequence[PackedLinear]:
    """Returns the first linears whose weights are together more than caches hold; none if all are less."""
    linears = [module for module in model.modules() if isinstance(module, PackedLinear)]
    totals = list(accumulate(each.num_bytes for each in linears))
    if not totals or totals[-1] < _LEAST_BYTES:
        return []
    count = sum(1 for _ in takewhile(lambda total: total < _MEASURED_BYTES, totals)) + 1
    return linears[:count]


def _measured(linears: Sequence[PackedLinear], library: CDLL, rows: int) -> Mapping[int, Sequence[float]]:
    """Returns the seconds that rows through the linears take at each distance, in rounds that try all of them."""
    inputs = [torch.ones(rows, each.in_features, dtype=each.dtype) for each in linears]
    times: dict[int, list[float]] = {distance: [] for distance in DISTANCES}
    for _ in range(_ROUNDS):
        for distance, own in times.items():
            library.glimpse_set_prefetch(rows, distance)
            begin = time.perf_counter()
            for linear, x in zip(linears, inputs, strict=True):
                linear(x)
            own.append(time.perf_counter() - begin)
    return times


def fastest(times: Mapping[int, Sequence[float]]) -> int:
    """Returns the best distance. Times of one round are compared: memory that others use, too, is slow for a while."""
    best, *others = times
    for distance in others:
        if median(map(truediv, times[distance], times[best])) < _WORTHWHILE:
            best = distance
    return best
