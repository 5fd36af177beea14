"""Makes the C library return the memory of large bodies to the operating system.

By default it keeps freed blocks of up to 32 MiB for itself, which after a few dozen large images is half a gigabyte.
"""

import asyncio
import ctypes
from collections.abc import Callable

_M_MMAP_THRESHOLD = -3
_MMAP_THRESHOLD_BYTES = 1 << 20
"""Larger blocks are mappings of their own, which end when they are freed."""
_TRIM_SECONDS = 5.0
_TRIM_BYTES = 64 << 20
"""Received bytes after which smaller blocks are returned."""


async def return_memory(num_received_bytes: Callable[[], int]) -> None:
    """Returns freed memory every few seconds in which large bodies came, until it is cancelled.

    Args:
        num_received_bytes: the bytes of all bodies that were received so far.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt") or not hasattr(libc, "malloc_trim"):
        return  # not glibc
    libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
    num_returned_bytes = 0
    while True:
        await asyncio.sleep(_TRIM_SECONDS)
        if (num_bytes := num_received_bytes()) >= num_returned_bytes + _TRIM_BYTES:
            num_returned_bytes = num_bytes
            await asyncio.to_thread(libc.malloc_trim, 0)
