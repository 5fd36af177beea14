"""Runs long Python work in threads, so that the event loop goes on serving other requests.

A thread shares the interpreter's lock with the loop: it helps with work in many small pieces, which lets the loop in
between them. A single call of a C function must itself be short, or release the lock.
"""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

MAX_INLINE_BYTES = 16 << 10
"""The largest message that is worked on in the event loop: a thread costs more than that takes."""

_NUM_THREADS = 2
"""More threads would get no more work done, and the loop would wait for each of them in turn."""

_P = ParamSpec("_P")
_T = TypeVar("_T")

_threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="offload")


async def run_sized(num_bytes: int, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Calls a function whose work grows with a message of `num_bytes`; in a thread if that is large."""
    if num_bytes <= MAX_INLINE_BYTES:
        return function(*args, **kwargs)
    context = contextvars.copy_context()
    return await asyncio.get_running_loop().run_in_executor(_threads, lambda: context.run(function, *args, **kwargs))
