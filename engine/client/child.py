"""An engine process and the channel to it."""

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import socket
from asyncio.subprocess import DEVNULL, Process, create_subprocess_exec
from collections.abc import Sequence
from typing import Self

from glimpse.engine.protocol.messages import FromEngine
from glimpse.engine.protocol.transport import FROM_ENGINE
from glimpse.frames import AsyncChannel
from glimpse.interrupts import WITHOUT_INTERRUPTS
from glimpse.native.memory import count_oom_kills

_STDERR = 2


def describe_exit(status: int) -> str:
    """Returns how a process ended, such as "exited with status 1"; `status` is negative after a signal."""
    # Real-time signals have a description, but are not in `signal.Signals`.
    return f"exited with status {status}" if status >= 0 else f"was ended by: {signal.strsignal(-status)}"


class EngineChild:
    """A running engine process."""

    def __init__(self, process: Process, channel: AsyncChannel[FromEngine]) -> None:
        self.process = process
        self.channel = channel
        self.was_ended_by_us = False
        """Whether `end` killed it."""
        self._num_oom_kills = count_oom_kills()

    @property
    def was_ended_by_others(self) -> bool:
        """Whether somebody killed it, and not for lack of memory. What it computed is then no cause of its end."""
        return self._is_killed and self._num_oom_kills is not None and self._num_oom_kills == count_oom_kills()

    @property
    def exit_reason(self) -> str:
        """How it ended, such as "exited with status 1", and whether memory may be why. It must have ended."""
        assert self.process.returncode is not None
        reason = describe_exit(self.process.returncode)
        if self._is_killed and self._num_oom_kills != count_oom_kills():
            return f"{reason}; Linux has killed processes for lack of memory since it started"
        return reason

    @property
    def _is_killed(self) -> bool:
        return self.process.returncode == -signal.SIGKILL and not self.was_ended_by_us

    @classmethod
    async def spawn(cls, command: Sequence[str]) -> Self:
        """Starts a process. Raises OSError if its program cannot be run."""
        if shutil.which(command[0]) is None:  # the shell would start, and then exit with status 127
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command[0])
        ours, theirs = socket.socketpair()
        with theirs:
            channel = await AsyncChannel.connect(ours, FROM_ENGINE)
            try:
                fd = theirs.fileno()
                # Output of libraries goes to the log, and terminal input to the front end.
                process = await create_subprocess_exec(
                    *WITHOUT_INTERRUPTS, *command, "--fd", str(fd), pass_fds=[fd], stdin=DEVNULL, stdout=_STDERR
                )
            except BaseException:
                await channel.close()
                raise
        return cls(process, channel)

    async def end(self, *, grace_seconds: float) -> None:
        """Waits for the process to exit, and kills it after `grace_seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                await self.process.wait()
        if self.process.returncode is None:
            self.was_ended_by_us = True
            self.process.kill()
        await self.process.wait()
        await self.channel.close()
