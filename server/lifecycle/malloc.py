"""Makes the C library return freed memory to the operating system."""

import asyncio
import ctypes

from glimpse.native.memory import FreedMemory

_M_MMAP_THRESHOLD = -3
_MMAP_THRESHOLD_BYTES = 1 << 20
"""Larger blocks are mappings of their own, which end when they are freed."""
_SECONDS = 5.0


async def return_memory() -> None:
    """Returns freed memory every few seconds, until it is cancelled."""
    libc, freed = ctypes.CDLL(None), FreedMemory()
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
    while True:
        await asyncio.sleep(_SECONDS)
        await asyncio.to_thread(freed.give_back)
