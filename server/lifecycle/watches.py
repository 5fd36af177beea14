"""What a process does every moment beside its requests: it measures the event loop, and returns freed memory."""

import asyncio
import ctypes
from collections.abc import Callable

from glimpse.native.memory import FreedMemory

_INTERVAL_SECONDS = 0.05
_M_MMAP_THRESHOLD = -3
_MMAP_THRESHOLD_BYTES = 1 << 20
"""Larger blocks are mappings of their own, which end when they are freed."""
_RETURN_SECONDS = 5.0


async def watch_loop_delay(observe: Callable[[float], None], *, interval_seconds: float = _INTERVAL_SECONDS) -> None:
    """Calls `observe` with the event loop's delay in seconds, again and again, until it is cancelled.

    The delay says by how much every response waits for something else.
    """
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + interval_seconds
        await asyncio.sleep(interval_seconds)
        observe(max(0.0, loop.time() - due))


async def return_memory() -> None:
    """Makes the C library return freed memory to the operating system every few seconds, until it is cancelled."""
    libc, freed = ctypes.CDLL(None), FreedMemory()
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
    while True:
        await asyncio.sleep(_RETURN_SECONDS)
        await asyncio.to_thread(freed.give_back)
