"""Memory of a CPU's KV cache that is mapped before tokens need it.

The system gives an allocation its memory page by page, when each is first written. Each layer has pages of its own, and
a huge page takes milliseconds: a first prompt would wait for them as long as for its computation.
"""

import ctypes
import mmap
import sys
from collections.abc import Iterator, Sequence

from torch import Tensor

from glimpse.engine.core.plan import SequenceChunk
from glimpse.engine.worker.tensors.kv_cache import KVCache

NUM_TOKENS_AHEAD = 1024
"""Tokens whose memory is mapped, in each layer, beyond all that was used."""

_MADV_POPULATE_WRITE = 23
"""From Linux 5.14 on. It leaves what is written as it is."""


class Prefault:
    """Maps memory while there is no step, a little at a time, because a request may come."""

    def __init__(self, cache: KVCache) -> None:
        """`cache` is mapped as far as it is on the CPU and the system can do it."""
        pairs = (cache.keys, cache.values, *(() if cache.sliding is None else cache.sliding))
        is_possible = cache.keys.device.type == "cpu" and sys.platform == "linux"
        self._layers = [layer for tensor in pairs for layer in tensor] if is_possible else []
        self._blocks_ahead = -(-NUM_TOKENS_AHEAD // cache.block_size)
        self._num_used, self._num_mapped = 0, 0  # blocks from the first on: free ones are taken in order
        self._rest: Iterator[Tensor] = iter(())  # parts of layers that are yet to be mapped

    def use(self, chunks: Sequence[SequenceChunk]) -> None:
        """Notes that a step uses the blocks of these chunks."""
        self._num_used = max(self._num_used, *(chunk.block_table[-1] + 1 for chunk in chunks))

    def advance(self) -> bool:
        """Maps some memory of one layer. Returns False if there is none to map."""
        if (part := next(self._rest, None)) is None:
            if not self._layers or self._num_mapped - self._num_used > self._blocks_ahead // 2:
                return False
            self._num_mapped = self._num_used + self._blocks_ahead
            new = slice(self._num_used, self._num_mapped)
            self._rest = (layer[new] for layer in self._layers if len(layer) > self._num_used)
            return True
        if not _map(part):
            self._layers, self._rest = [], iter(())
        return True


def _map(part: Tensor) -> bool:
    """Maps contiguous memory. Returns False if the system cannot."""
    first = part.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    num_bytes = part.data_ptr() + part.nbytes - first
    system = ctypes.CDLL(None)
    return system.madvise(ctypes.c_void_p(first), ctypes.c_size_t(num_bytes), _MADV_POPULATE_WRITE) == 0
