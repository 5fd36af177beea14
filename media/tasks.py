"""Concurrent tasks that succeed or fail together."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


async def run_all(works: Iterable[Coroutine[Any, Any, ResultT]]) -> list[ResultT]:
    """Runs coroutines concurrently and returns their results in order. The first failure cancels the others."""
    # No TaskGroup: its ExceptionGroup and the error refer to each other, so that only the cycle collector frees them.
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        await _end(tasks)
        raise


async def _end(tasks: "list[asyncio.Task[ResultT]]") -> None:
    """Cancels tasks, waits until they have ended, and empties the list, from which errors could be reached."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    tasks.clear()
