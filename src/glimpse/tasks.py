"""Concurrent coroutines: all of them, or the first that ends."""

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
    except BaseException as error:
        await _end(tasks)
        _forget_hidden_errors(error)
        raise


async def first(*coroutines: Coroutine[object, object, object]) -> None:
    """Waits for the first coroutine to end, cancels the others, and raises the first one's error."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await _end(tasks)


async def _end(tasks: "list[asyncio.Task[ResultT]]") -> None:
    """Cancels tasks, waits until they have ended, and empties the list, from which errors could be reached."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    tasks.clear()


def _forget_hidden_errors(error: BaseException | None) -> None:
    """Drops what tracebacks do not show, because of `from`: a TimeoutError refers to the task that the error ends."""
    while error is not None:
        if error.__suppress_context__:
            error.__context__ = error.__cause__
        error = error.__context__
