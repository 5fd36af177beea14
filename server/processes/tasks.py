"""Waits for the first of several coroutines."""

import asyncio
from collections.abc import Coroutine


async def first(*coroutines: Coroutine[object, object, object]) -> None:
    """Waits for the first coroutine to end, cancels the others, and raises the first one's error."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
