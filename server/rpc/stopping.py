"""Ends open RPCs when the server stops, each with ServerStoppingError, whatever its handler waits for."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

_T = TypeVar("_T")


class ServerStoppingError(Exception):
    """The server ends the RPC because it stops."""


class StopSwitch:
    """Interrupts one RPC from outside."""

    def __init__(self) -> None:
        self._limits: list[asyncio.Timeout] = []
        """Of the guards that the RPC is in, the innermost last. They set no time until the RPC is interrupted."""
        self._is_on = False
        self._is_sending = False

    def turn_on(self) -> None:
        """Raises ServerStoppingError in the innermost guard, after the write in progress if there is one."""
        if not self._is_on:
            self._is_on = True
            if not self._is_sending:
                self._interrupt()

    @asynccontextmanager
    async def guard(self) -> AsyncGenerator[None]:
        """Raises ServerStoppingError where the block waits once the switch is turned on.

        Raises RuntimeError for a CancelledError that is not this task's own: it must not end the RPC without a status.
        """
        if self._is_on:
            raise ServerStoppingError
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._limits.append(limit)
                try:
                    yield
                finally:
                    self._limits.pop()
        except TimeoutError as error:
            if limit.expired():
                raise ServerStoppingError from error
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise RuntimeError("something that the RPC waits for was cancelled") from error

    async def send(self, operation: Callable[[_T], Awaitable[None]], message: _T) -> None:
        """Writes to the client. The switch does not interrupt this: after half a write, no error could be sent."""
        if self._is_on:
            raise ServerStoppingError
        self._is_sending = True
        try:
            await operation(message)
        finally:
            self._is_sending = False
            if self._is_on:
                self._interrupt()

    def _interrupt(self) -> None:
        if self._limits:
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
