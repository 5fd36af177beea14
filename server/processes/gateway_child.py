"""Runs the gateway as a child process, `python -m glimpse.gateway run`. It says through a pipe that it is ready.

Its standard output is this process's own. It is where Envoy writes its access log, which nothing here reads.
"""

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import Process
from collections.abc import Sequence

from pydantic import TypeAdapter

from glimpse.gateway.options import PublicOptions

_FLUSH_SECONDS = 3.0
"""Time for the child to pass on the last responses and to end by itself, once it has no requests."""
_KILL_AFTER_SECONDS = 10.0
"""Time for the child to end once it is told to stop at once."""


class GatewayDiedError(Exception):
    """The gateway ended without being asked to."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the gateway (Envoy) ended with status {status}; the lines above may say why")


class GatewayChild:
    """A running gateway. `start_gateway` makes it."""

    def __init__(self, process: Process, ready: asyncio.StreamReader, transport: asyncio.ReadTransport) -> None:
        self._process = process
        self._ready = ready
        self._transport = transport
        self._is_draining = False

    async def ready(self) -> None:
        """Waits until the gateway accepts connections. Raises GatewayDiedError."""
        if not await self._ready.readline():
            raise GatewayDiedError(await self._process.wait())

    async def watch(self) -> None:
        """Waits until the gateway ends, and raises GatewayDiedError."""
        raise GatewayDiedError(await self._process.wait())

    def drain(self) -> None:
        """Tells the gateway to end once it has no requests. Idempotent."""
        if not self._is_draining and self._process.returncode is None:
            self._is_draining = True
            self._process.terminate()

    async def stop(self) -> None:
        """Stops the gateway, whose requests the server has ended."""
        self._transport.close()
        self.drain()
        if await self._ends_within(_FLUSH_SECONDS):
            return
        self._process.terminate()  # the second signal makes the child stop at once
        if not await self._ends_within(_KILL_AFTER_SECONDS):
            self._process.kill()
            await self._process.wait()

    async def _ends_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._process.wait()
        return self._process.returncode is not None


async def start_gateway(
    *, listen: str, upstreams: Sequence[str], drain_seconds: float, flags: PublicOptions | None = None
) -> GatewayChild:
    """Starts a gateway from `listen` to `upstreams`, all HOST:PORT. `flags`: what clients may notice."""
    reading, writing = os.pipe()
    ready = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(ready), os.fdopen(reading, "rb")
    )
    servers = (f"--upstream={upstream}" for upstream in upstreams)
    public = TypeAdapter(PublicOptions).dump_json(flags or PublicOptions()).decode()
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *(
                "-m",
                "glimpse.gateway",
                "run",
                f"--end-with-parent={os.getpid()}",
                f"--ready-descriptor={writing}",
                f"--listen={listen}",
                *servers,
                f"--drain-seconds={round(drain_seconds)}",
                f"--public={public}",
            ),
            pass_fds=(writing,),
            # Ctrl-C reaches the terminal's whole process group; the gateway must drain first, when the server says so.
            # No session of its own: Linux may share processors between sessions, whatever runs in them.
            preexec_fn=os.setpgrp,  # uvloop knows no `process_group`
        )
    finally:
        os.close(writing)
    return GatewayChild(process, ready, transport)
