"""A front end as its supervisor sees it: a child process, its share of the engine, and messages."""

import asyncio
import contextlib
import socket
import sys
from asyncio.subprocess import DEVNULL, Process, create_subprocess_exec
from collections.abc import Callable
from typing import Any, Self, TypeVar

from glimpse.engine.client.broker import EngineBroker
from glimpse.frames import AsyncChannel, Frames
from glimpse.interrupts import WITHOUT_INTERRUPTS
from glimpse.server.processes.messages import Begin, FromFrontEnd, Quit, Reply, ToFrontEnd

_COMMAND = (sys.executable, "-m", "glimpse.server.processes.front_end")

ReplyT = TypeVar("ReplyT", bound=Reply)
_MESSAGES = Frames[FromFrontEnd](FromFrontEnd)


class FrontEndProcess:
    """A running front end. `spawn` makes it."""

    def __init__(
        self,
        process: Process,
        channel: AsyncChannel[FromFrontEnd],
        engine: asyncio.Task[None],
        on_message: Callable[[FromFrontEnd], None],
    ) -> None:
        self.pid = process.pid
        self._process = process
        self._channel = channel
        self._engine = engine
        self._on_message = on_message
        self._replies: dict[type[Reply], asyncio.Future[Any]] = {}
        self._receiving = asyncio.create_task(self._receive())

    @classmethod
    async def spawn(
        cls,
        begin: Begin,
        broker: EngineBroker,
        counts_descriptor: int,
        *,
        on_message: Callable[[FromFrontEnd], None],
    ) -> Self:
        """Starts a front end and tells it to begin.

        Args:
            on_message: Called with its messages other than replies, in order; must not block.

        Raises:
            OSError: its program cannot be run.
        """
        engine, its_engine = socket.socketpair()
        control, its_control = socket.socketpair()
        with its_engine, its_control:
            descriptors = (its_engine.fileno(), its_control.fileno(), counts_descriptor)
            names = ("engine", "control", "counts")
            options = (f"--{name}-fd={descriptor}" for name, descriptor in zip(names, descriptors, strict=True))
            try:
                process = await create_subprocess_exec(
                    *WITHOUT_INTERRUPTS, *_COMMAND, *options, pass_fds=descriptors, stdin=DEVNULL
                )
            except BaseException:
                engine.close()
                control.close()
                raise
        channel = await AsyncChannel.connect(control, _MESSAGES)
        channel.post(begin)
        return cls(process, channel, asyncio.create_task(broker.serve(engine)), on_message)

    def send(self, message: ToFrontEnd) -> None:
        """Sends a message. It is lost if the process is gone."""
        self._channel.post(message)

    async def ask(self, message: ToFrontEnd, reply_type: type[ReplyT], *, seconds: float) -> ReplyT | None:
        """Sends a message and returns the reply; None if the process ends or does not reply within `seconds`."""
        reply = self._replies.setdefault(reply_type, asyncio.get_running_loop().create_future())
        self.send(message)
        await asyncio.wait([reply, self._receiving], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return reply.result() if reply.done() else None

    async def wait(self) -> int:
        """Waits until the process has ended, cleans up, and returns its exit status."""
        status = await self._process.wait()
        await asyncio.wait([self._engine, self._receiving])  # both sockets end with it
        await self._channel.close()
        return status

    async def quit(self, *, grace_seconds: float) -> None:
        """Ends the process, with force after `grace_seconds`. `wait` must be running, or follow."""
        self.send(Quit())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                await self._process.wait()
        self.kill()
        await self._process.wait()

    def kill(self) -> None:
        """Ends the process at once."""
        if self._process.returncode is None:
            self._process.kill()

    async def _receive(self) -> None:
        """Receives until the process has ended. Raises TransportError."""
        while (message := await self._channel.receive()) is not None:
            if isinstance(message, Reply):
                if (reply := self._replies.pop(type(message), None)) is not None:
                    reply.set_result(message)
            else:
                self._on_message(message)
