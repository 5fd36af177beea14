"""Finds what suits this processor by computing with a model's own weights. Results have the same bits either way.

- How far ahead the kernels prefetch weights. A processor that follows weights by itself is slowed by prefetches; one
  that stops at the end of each page of memory needs them, and some do while they compute with several rows. At the
  farthest distance, lines of eight pages are prefetched side by side: some processors then read more in a second.
- Whether many rows are multiplied by weights of 4 and 8 bits that were widened in the cache, or widen them in registers
  for each few rows, which processors with vector units to spare do meanwhile. Matrix units always take the cache.

bench/results/engine.md has figures of each kind.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from ctypes import CDLL
from functools import partial
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
DISTANCES = (0, 4096, 8192, 16384, 32768)
ROWS = (1, 4, 8)
"""Rows of products whose distance is measured: bound by the memory, less so, and as much by what they compute."""
_READ_BYTES = 256 << 20
"""Weights that are read in each round: more than caches hold."""
_LEAST_BYTES = 64 << 20
"""Fewer weights stay in caches, where no distance matters."""
_ROUNDS = 5
_WORTHWHILE = 0.97
"""A choice is preferred to those before it if the time is less than this share of theirs."""
_MANY_ROWS = 64
_MULTIPLIED_BYTES = 16 << 20
"""Weights that many rows are multiplied by in each round."""


def tune(model: nn.Module, library: CDLL) -> None:
    """Sets what suits best for this process. Measuring takes up to a second.

    Raises:
        CheckpointError: the environment variable has no number of bytes.
    """
    set_prefetching(model, library)
    set_unpacking(model, library)


def set_unpacking(model: nn.Module, library: CDLL) -> bool:
    """Sets whether weights of 4 and 8 bits are widened in the cache for many rows, and returns it."""
    measured = measured_linears(model, _MULTIPLIED_BYTES)
    linears = [linear for linear in measured if linear.widens_integers and not linear.multiplies_tiles]
    unpacks = not linears or bool(fastest(_measured(linears, _MANY_ROWS, (1, 0), library.glimpse_set_unpacking)))
    library.glimpse_set_unpacking(unpacks)
    if linears:
        _log.info("many rows are multiplied by weights that are widened in %s", "the cache" if unpacks else "registers")
    return unpacks


def set_prefetching(model: nn.Module, library: CDLL) -> Sequence[int]:
    """Sets the distances for this process, and returns them in bytes, as `ROWS`.

    Raises:
        CheckpointError: the environment variable has no number of bytes.
    """
    forced, linears = os.environ.get(VARIABLE), measured_linears(model, _READ_BYTES)
    if forced and not forced.isdecimal():
        raise CheckpointError(f"{VARIABLE}: expected a number of bytes, such as 4096, or 0, got {forced}")
    distances = []
    for rows in ROWS:
        read = [linear for linear in linears if rows <= linear.streamed_rows]
        set_distance = partial(library.glimpse_set_prefetch, rows)
        distance = DISTANCES[0]
        if forced:
            distance = int(forced)
        elif read:
            distance = fastest(_measured(read, rows, DISTANCES, set_distance))
        set_distance(distance)
        distances.append(distance)
    if forced or linears:
        _log.info("weights are prefetched %d bytes ahead, %d and %d for a few rows", *distances)
    return distances


def measured_linears(model: nn.Module, num_bytes: int) -> Sequence[PackedLinear]:
    """Returns the first linears with so many bytes of weights; none if the model's are few enough for caches."""
    linears = [module for module in model.modules() if isinstance(module, PackedLinear)]
    totals = list(accumulate(each.num_bytes for each in linears))
    if not totals or totals[-1] < _LEAST_BYTES:
        return []
    count = sum(1 for _ in takewhile(lambda total: total < num_bytes, totals)) + 1
    return linears[:count]


def _measured(
    linears: Sequence[PackedLinear], rows: int, choices: Sequence[int], choose: Callable[[int], object]
) -> Mapping[int, Sequence[float]]:
    """Returns the seconds that rows through the linears take with each choice, in rounds that try all of them."""
    inputs = [torch.ones(rows, each.in_features, dtype=each.dtype) for each in linears]
    times: dict[int, list[float]] = {choice: [] for choice in choices}
    for _ in range(_ROUNDS):
        for choice, own in times.items():
            choose(choice)
            begin = time.perf_counter()
            for linear, x in zip(linears, inputs, strict=True):
                linear(x)
            own.append(time.perf_counter() - begin)
    return times


def fastest(times: Mapping[int, Sequence[float]]) -> int:
    """Returns the best choice. Times of one round are compared: memory that others use, too, is slow for a while."""
    best, *others = times
    for choice in others:
        if median(map(truediv, times[choice], times[best])) < _WORTHWHILE:
            best = choice
    return best
