"""Merges asynchronous streams into one."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

_T = TypeVar("_T")


async def merge_streams(streams: Sequence[AsyncGenerator[_T, None]]) -> AsyncGenerator[tuple[int, _T], None]:
    """Yields the values of all streams as they arrive, each with the index of its stream.

    Advances a stream only after its last value was consumed, so a slow consumer applies back-pressure to every stream.
    If one stream fails, all end. Closing the generator closes the streams.
    """
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for value in only:
                yield 0, value
        return
    waits = {asyncio.create_task(_next(stream)): index for index, stream in enumerate(streams)}
    try:
        while waits:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            # Collect all results first: a failure takes precedence over values that arrived with it.
            results = {waits[task]: task.result() for task in done}
            for task in done:
                del waits[task]
            for index in sorted(results):
                if (value := results[index]) is not None:
                    yield index, value[0]
                    waits[asyncio.create_task(_next(streams[index]))] = index
    finally:
        await _close(streams, list(waits))


async def _next(stream: AsyncGenerator[_T, None]) -> tuple[_T] | None:
    """Returns the next value in a tuple, or None after the last."""
    async for value in stream:
        return (value,)
    return None


async def _close(streams: Sequence[AsyncGenerator[_T, None]], waits: Sequence[asyncio.Task[tuple[_T] | None]]) -> None:
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    for stream in streams:
        await stream.aclose()
