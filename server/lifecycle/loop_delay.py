"""Measures how late the event loop runs what is due: by how much every response waits for something else."""

import asyncio
from collections.abc import Callable

_INTERVAL_SECONDS = 0.05


async def watch_loop_delay(observe: Callable[[float], None], *, interval_seconds: float = _INTERVAL_SECONDS) -> None:
    """Calls `observe` with the event loop's delay in seconds, again and again, until it is cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + interval_seconds
        await asyncio.sleep(interval_seconds)
        observe(max(0.0, loop.time() - due))
