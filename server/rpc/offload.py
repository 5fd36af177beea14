"""Runs long Python work in threads, so that the event loop goes on serving other requests. Clients get threads in turn.

A thread shares the interpreter's lock with the loop: it helps with work in many small pieces, which lets the loop in
between them. A single call of a C function must itself be short, or release the lock.
"""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

from glimpse.server.rpc.admission import FairSlots
from glimpse.server.rpc.context import current_rpc

MAX_INLINE_BYTES = 16 << 10
"""The largest message that is worked on in the event loop: a thread costs more than that takes."""

_NUM_THREADS = 2
"""More threads would get no more work done, and the loop would wait for each of them in turn."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Offload:
    """Threads for one kind of work. Nothing waits in their queue: a request waits for its client's turn."""

    def __init__(self, name: str) -> None:
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix=name)
        self._places = FairSlots(_NUM_THREADS)

    async def run(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Calls a function in a thread. If the caller is cancelled, the thread stays taken until the function ends."""
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()
        await self._places.acquire(current_rpc().client)

        def release(_: Future[Any]) -> None:
            try:
                loop.call_soon_threadsafe(self._places.release)
            except RuntimeError:  # the loop has ended
                self._places.release()

        work = self._threads.submit(context.run, partial(function, *args, **kwargs))
        work.add_done_callback(release)
        return await asyncio.wrap_future(work)


_messages = Offload("offload")
builds = Offload("schemas")
"""For checks of schemas, which take longer than anything else."""


_turns = FairSlots(1)


async def next_turn() -> None:
    """Waits for a turn of the event loop that no other caller has, by clients in turn.

    So the loop takes in new RPCs and serves cheap ones between two pieces of work that cannot be made shorter.
    """
    await _turns.acquire(current_rpc().client)
    asyncio.get_running_loop().call_soon(_turns.release)


async def run(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Calls a function in a thread."""
    return await _messages.run(function, *args, **kwargs)


async def run_sized(num_bytes: int, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Calls a function whose work grows with a message of `num_bytes`; in a thread if that is large."""
    if num_bytes <= MAX_INLINE_BYTES:
        return function(*args, **kwargs)
    return await _messages.run(function, *args, **kwargs)
