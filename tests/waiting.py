"""Waits for what other tasks, threads and processes do."""

import asyncio
import time
from collections.abc import Awaitable, Callable

DEADLINE_SECONDS = 120.0
"""How long tests wait for what others do: what comes late on a busy machine fails none of them."""
_MOST_SECONDS = 5.0
"""The time between two looks that counts."""


async def until(condition: Callable[[], object], *, seconds: float = DEADLINE_SECONDS, pause: float = 0.005) -> None:
    """Waits until the condition, which may have to be awaited, is true. Raises TimeoutError after `seconds`."""
    async with asyncio.timeout(seconds):
        while not (await found if isinstance(found := condition(), Awaitable) else found):  # noqa: ASYNC110
            await asyncio.sleep(pause)


def eventually(condition: Callable[[], bool], *, pause: float = 0.02) -> bool:
    """Whether the condition became true in time. A pause of `pause` seconds is between two looks.

    Of a machine that stalls, `_MOST_SECONDS` are counted: what the condition waits for stalled too.
    """
    waited = 0.0
    while waited < DEADLINE_SECONDS:
        looked = time.monotonic()
        if condition():
            return True
        time.sleep(pause)
        waited += min(time.monotonic() - looked, _MOST_SECONDS)
    return condition()
