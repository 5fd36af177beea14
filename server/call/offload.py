"""Runs long Python work in threads, so that the event loop goes on serving other requests. Clients get threads in turn.

A thread shares the interpreter's lock with the loop: it helps with work in many small pieces, which lets the loop in
between them. A single call of a C function must itself be short, or release the lock.
"""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from glimpse.media.cache.fair_share import FairPlaces

MAX_INLINE_BYTES = 16 << 10
"""The largest message that is worked on in the event loop: a thread costs more than that takes."""

_NUM_THREADS = 2
"""For one client. More threads would get no more work done, and the loop would wait for each of them in turn."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Offload:
    """Threads for one kind of work. A request waits for its client's turn."""

    def __init__(self, name: str) -> None:
        self._threads = ThreadPoolExecutor(2 * _NUM_THREADS, thread_name_prefix=name)
        self._places = FairPlaces(_NUM_THREADS)

    async def run(self, client: str, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Calls a function for a client in a thread. The thread stays taken until it ends, also without its caller."""
        work = partial(contextvars.copy_context().run, partial(function, *args, **kwargs))
        return await asyncio.wrap_future(await self._places.submit(self._threads, client, work))


_messages = Offload("offload")
builds = Offload("schemas")
"""For checks of schemas, which take longer than anything else."""


class LoopTurns:
    """Turns of the event loop, for work that cannot be made shorter and for requests that begin.

    A client has one, and at most one other client. So the loop serves cheap RPCs in between, and nobody waits long
    behind a flood.
    """

    def __init__(self) -> None:
        self._places = FairPlaces(1)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def next(self, client: str) -> None:
        """Waits for a turn."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # the one before has ended, perhaps within a turn
            self._loop, self._places = loop, FairPlaces(1)
        await self._places.acquire(client)
        loop.call_soon(self._places.release, client)


turns = LoopTurns()


async def run(client: str, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Calls a function for a client in a thread."""
    return await _messages.run(client, function, *args, **kwargs)


async def run_sized(client: str, num_bytes: int, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Calls a function whose work grows with a message of `num_bytes`; in a thread if that is large."""
    if num_bytes <= MAX_INLINE_BYTES:
        return function(*args, **kwargs)
    return await _messages.run(client, function, *args, **kwargs)
