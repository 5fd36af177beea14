"""Ends open RPCs from outside, whatever their handlers wait for: all when the server stops, each with
ServerStoppingError, and any whose client does not read its response, with UnreadResponseError."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NoReturn, TypeVar

from glimpse.server.errors import ServerStoppingError

MAX_UNREAD_SECONDS = 60.0
"""Time that a write may wait for its client to read, as at the gateway. The request keeps its place in the engine
meanwhile."""
_CHECKS = 6
"""Checks in that time. A timer for each write would cost more than the write."""

_T = TypeVar("_T")


class UnreadResponseError(Exception):
    """The server ends the RPC because its client does not read the response."""


class StopSwitch:
    """Interrupts one RPC from outside."""

    def __init__(self) -> None:
        self._limits: list[asyncio.Timeout] = []
        """Limits of the guards around the RPC, the innermost last. They set no time until the RPC is interrupted."""
        self._error: type[ServerStoppingError | UnreadResponseError] | None = None
        """Why it is interrupted. None: it is not."""
        self._sending_since: float | None = None

    @property
    def can_write(self) -> bool:
        """Whether nothing is left half written, after which the RPC can only end."""
        return self._error is not UnreadResponseError

    def turn_on(self) -> None:
        """Raises ServerStoppingError in the innermost guard, after the write in progress if there is one."""
        if self._error is None:
            self._error = ServerStoppingError
            self._interrupt()

    def end_unread(self, before: float) -> None:
        """Raises UnreadResponseError in the innermost guard if a write that began before this time is in progress."""
        if self._sending_since is not None and self._sending_since < before and self.can_write:
            self._error = UnreadResponseError
            self._interrupt()

    @asynccontextmanager
    async def guard(self) -> AsyncGenerator[None]:
        """Raises the error with which the RPC is interrupted where the block waits.

        Raises RuntimeError for a CancelledError that is not this task's own: it must not end the RPC without a status.
        """
        if self._error is not None:
            raise self._error
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._limits.append(limit)
                try:
                    yield
                finally:
                    self._limits.pop()
        except TimeoutError as error:
            if limit.expired() and self._error is not None:
                raise self._error from error
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise RuntimeError("something that the RPC waits for was cancelled") from error

    async def send(self, operation: Callable[[_T], Awaitable[None]], message: _T) -> None:
        """Writes to the client. A stop does not interrupt this: after half a write, no error could be sent."""
        if self._error is not None:
            raise self._error
        self._sending_since = asyncio.get_running_loop().time()
        try:
            await operation(message)
        finally:
            self._sending_since = None
            self._interrupt()

    def _interrupt(self) -> None:
        """Interrupts what the RPC waits for, if it shall be: a stop does not interrupt a write."""
        wanted = ServerStoppingError if self._sending_since is None else UnreadResponseError
        if self._error is wanted and self._limits:
            self._limits[-1].reschedule(asyncio.get_running_loop().time())


class OpenRpcs:
    """RPCs that are being served, until their responses are written."""

    def __init__(self) -> None:
        self._requests: dict[asyncio.Task[object], StopSwitch] = {}
        self._endless: dict[asyncio.Task[object], StopSwitch] = {}
        self._refuses_requests = False
        self._refuses_all = False

    def add(self, switch: StopSwitch, *, is_request: bool) -> None:
        """Adds the RPC of the current task. No drain waits for it unless `is_request`: it may never end by itself."""
        task = asyncio.current_task()
        if task is None:
            return
        rpcs = self._requests if is_request else self._endless
        rpcs[task] = switch
        task.add_done_callback(rpcs.pop)
        if self._refuses_all or (is_request and self._refuses_requests):
            switch.turn_on()

    async def watch(self) -> NoReturn:
        """Ends RPCs whose clients do not read."""
        while True:
            await asyncio.sleep(MAX_UNREAD_SECONDS / _CHECKS)
            before = asyncio.get_running_loop().time() - MAX_UNREAD_SECONDS
            for switch in [*self._requests.values(), *self._endless.values()]:
                switch.end_unread(before)

    def refuse_requests(self) -> None:
        """Ends requests that begin from now on."""
        self._refuses_requests = True

    async def wait_until_idle(self) -> None:
        """Returns once no request is being served."""
        while self._requests:
            await asyncio.wait(list(self._requests))

    async def end_all(self) -> None:
        """Ends every RPC, and those that still come, and waits until their responses are written."""
        self._refuses_all = True
        for switch in [*self._requests.values(), *self._endless.values()]:
            switch.turn_on()
        while tasks := [*self._requests, *self._endless]:
            await asyncio.wait(tasks)
