"""A front end as its supervisor sees it: a child process, its share of the engine, and what it is told and asked."""

import asyncio
import contextlib
import socket
import sys
from asyncio.subprocess import DEVNULL, Process, create_subprocess_exec
from collections.abc import Callable, Sequence
from typing import Self

from glimpse.engine.client.broker import EngineBroker
from glimpse.frames import Frames
from glimpse.server.processes.messages import Begin, FromFrontEnd, Quit
from glimpse.server.processes.peer import Peer

FRONT_END_COMMAND = (sys.executable, "-m", "glimpse.server.processes.front_end")

_MESSAGES = Frames[FromFrontEnd](FromFrontEnd)


class FrontEndProcess:
    """A running front end. `spawn` makes it."""

    def __init__(self, process: Process, peer: Peer[FromFrontEnd], engine: asyncio.Task[None]) -> None:
        self.pid = process.pid
        self.peer = peer
        """To tell and ask it something."""
        self._process = process
        self._tasks = (engine, asyncio.create_task(peer.serve()))

    @classmethod
    async def spawn(
        cls,
        begin: Begin,
        broker: EngineBroker,
        counts_descriptor: int,
        *,
        notice: Callable[[FromFrontEnd], None],
        command: Sequence[str] = FRONT_END_COMMAND,
    ) -> Self:
        """Starts a front end and tells it to begin.

        Args:
            begin: How it serves.
            broker: Of the engine that it shares.
            counts_descriptor: Of the memory of `SharedByteCounts`.
            notice: Called with its notices.
            command: Its program and arguments.

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
                process = await create_subprocess_exec(*command, *options, pass_fds=descriptors, stdin=DEVNULL)
            except BaseException:
                engine.close()
                control.close()
                raise
        peer = await Peer.connect(control, _MESSAGES, notice=notice)
        peer.tell(begin)
        return cls(process, peer, asyncio.create_task(broker.serve(engine)))

    async def wait(self) -> int:
        """Waits until the process has ended, cleans up, and returns its exit status."""
        status = await self._process.wait()
        await asyncio.wait(self._tasks)  # both sockets end with it
        await self.peer.close()
        return status

    async def quit(self, *, grace_seconds: float) -> None:
        """Ends the process, with force after `grace_seconds`. `wait` must be running, or follow."""
        self.peer.tell(Quit())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), grace_seconds)
        self.kill()
        await self._process.wait()

    def kill(self) -> None:
        """Ends the process at once."""
        if self._process.returncode is None:
            self._process.kill()
