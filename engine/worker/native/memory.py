"""Memory for packed weights on huge pages, which avoids page table walks when all weights are read."""

from ctypes import CDLL
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

import torch
from torch import Tensor

HUGE_PAGE_BYTES = 2 << 20
ARENA_BYTES = 64 << 20
"""Allocated from the system at once: matrices share huge pages, because few are a multiple of one in size."""
ALIGNMENT_BYTES = 64
"""Size of a cache line."""


class WeightMemory:
    """Allocates memory that lives as long as the returned tensors."""

    def __init__(self, library: CDLL) -> None:
        self._library = library
        self._arena = torch.empty(0, dtype=torch.uint8)  # unused rest of the last arena

    def allocate(self, num_bytes: int) -> Tensor:
        """Returns uint8 [num_bytes], zeroed and aligned to cache lines."""
        if num_bytes > len(self._arena):
            self._arena = self._new_arena(max(num_bytes, ARENA_BYTES))
        used = -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        memory, self._arena = self._arena[:num_bytes], self._arena[used:]
        return memory

    def _new_arena(self, num_bytes: int) -> Tensor:
        # Private, because shared memory, the default, does not use huge pages. Mapped directly, because memory that the
        # allocator has used before is on small pages already.
        memory = mmap(-1, num_bytes + HUGE_PAGE_BYTES, flags=MAP_PRIVATE | MAP_ANONYMOUS)
        arena = torch.frombuffer(memory, dtype=torch.uint8)
        arena = arena[-arena.data_ptr() % HUGE_PAGE_BYTES :]
        self._library.glimpse_advise_huge_pages(arena.data_ptr(), len(arena))
        return arena
