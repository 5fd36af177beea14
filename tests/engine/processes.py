"""Waits for what happens in other processes."""

import asyncio
from collections.abc import Callable
from pathlib import Path

DEADLINE_SECONDS = 20.0


async def until(condition: Callable[[], bool]) -> None:
    """Waits until the condition is true. Raises TimeoutError after three times `DEADLINE_SECONDS`."""
    async with asyncio.timeout(3 * DEADLINE_SECONDS):
        while not condition():  # noqa: ASYNC110  # what is waited for happens in another process
            await asyncio.sleep(0.005)


def alive(pid: int) -> bool:
    """Returns whether a process runs. A zombie does not: orphans may be reaped late."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
