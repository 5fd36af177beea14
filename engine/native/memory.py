"""Memory for packed weights: on huge pages, so that reading all of it is not a walk through page tables."""

from ctypes import CDLL
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

import torch
from torch import Tensor

HUGE_PAGE_BYTES = 2 << 20
ARENA_BYTES = 64 << 20
"""Asked of the system at once: matrices are smaller than huge pages, or end somewhere in one, so they share them."""
ALIGNMENT_BYTES = 64
"""Of a cache line."""


class WeightMemory:
    """Hands out memory that lives as long as the tensors it gives."""

    def __init__(self, library: CDLL) -> None:
        self._library = library
        self._arena = torch.empty(0, dtype=torch.uint8)  # what is left of the last one

    def allocate(self, num_bytes: int) -> Tensor:
        """uint8 [num_bytes], aligned to cache lines, zero."""
        if num_bytes > len(self._arena):
            self._arena = self._fresh(max(num_bytes, ARENA_BYTES))
        taken = -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        memory, self._arena = self._arena[:num_bytes], self._arena[taken:]
        return memory

    def _fresh(self, num_bytes: int) -> Tensor:
        # Private: Python's default is shared memory, which stays on small pages. Fresh from the system: what the
        # allocator has used before lies on small pages already.
        memory = mmap(-1, num_bytes + HUGE_PAGE_BYTES, flags=MAP_PRIVATE | MAP_ANONYMOUS)
        arena = torch.frombuffer(memory, dtype=torch.uint8)
        arena = arena[-arena.data_ptr() % HUGE_PAGE_BYTES :]
        self._library.glimpse_advise_huge_pages(arena.data_ptr(), len(arena))
        return arena
