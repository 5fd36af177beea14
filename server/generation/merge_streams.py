"""Merges asynchronous streams into one."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import TypeAlias, TypeVar

from glimpse.streams import Stream

_T = TypeVar("_T")
_Values: TypeAlias = AsyncGenerator[_T, None] | Stream[_T]


def merge_streams(streams: Sequence[_Values[_T]]) -> _Values[_T]:
    """Yields the values of all streams as they arrive.

    Advances a stream only after its last value was consumed, so a slow consumer applies back-pressure to every stream.
    If one stream fails, all end. Closing the generator closes the streams.
    """
    return streams[0] if len(streams) == 1 else _merge(streams)


async def _merge(streams: Sequence[_Values[_T]]) -> AsyncGenerator[_T, None]:
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
                    yield value[0]
                    waits[asyncio.create_task(_next(streams[index]))] = index
    finally:
        await _close(streams, list(waits))


async def _next(stream: _Values[_T]) -> tuple[_T] | None:
    """Returns the next value in a tuple, or None after the last."""
    async for value in stream:
        return (value,)
    return None


async def _close(streams: Sequence[_Values[_T]], waits: Sequence[asyncio.Task[tuple[_T] | None]]) -> None:
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    for stream in streams:
        await stream.aclose()
