"""Makes the C library return freed memory to the operating system.

By default it keeps freed blocks of up to 32 MiB for itself, which after a few dozen large images, or a few thousand
requests at once, is half a gigabyte.
"""

import asyncio
import ctypes
from pathlib import Path

_M_MMAP_THRESHOLD = -3
_MMAP_THRESHOLD_BYTES = 1 << 20
"""Larger blocks are mappings of their own, which end when they are freed."""
_TRIM_SECONDS = 5.0
_TRIM_BYTES = 32 << 20
"""Growth above the least that the process has held, after which smaller blocks are returned."""
_STATM = Path("/proc/self/statm")
_PAGE_BYTES = 4096


async def return_memory() -> None:
    """Returns freed memory every few seconds while the process holds more than it once did, until it is cancelled."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt") or not hasattr(libc, "malloc_trim"):
        return  # not glibc, so not Linux
    libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
    least = _resident_bytes()
    while True:
        await asyncio.sleep(_TRIM_SECONDS)
        if _resident_bytes() > least + _TRIM_BYTES:
            await asyncio.to_thread(libc.malloc_trim, 0)
        least = min(least, _resident_bytes())


def _resident_bytes() -> int:
    return int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES
