"""Runs the gateway as a child process, `python -m glimpse.gateway run`. Its first line of output means it is ready."""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process

_KILL_AFTER_SECONDS = 10.0
"""Time that the child gets to end after a signal, in addition to the time to drain."""


class GatewayDiedError(Exception):
    """The gateway ended without being asked to."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the gateway (Envoy) ended with status {status}; the lines above may say why")


class GatewayChild:
    """A running gateway. `start_gateway` makes it."""

    def __init__(self, process: Process, output: asyncio.StreamReader, *, drain_seconds: float) -> None:
        self._process = process
        self._output = output
        self._drain_seconds = drain_seconds

    async def ready(self) -> None:
        """Waits until the gateway accepts connections. Raises GatewayDiedError."""
        if not await self._output.readline():
            raise GatewayDiedError(await self._process.wait())

    async def watch(self) -> None:
        """Waits until the gateway ends, and raises GatewayDiedError."""
        raise GatewayDiedError(await self._process.wait())

    async def stop(self) -> None:
        """Drains the gateway and stops it. A concurrent second call stops it without draining."""
        if self._process.returncode is not None:
            return
        # A second signal makes the child stop at once.
        self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), self._drain_seconds + _KILL_AFTER_SECONDS)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


async def start_gateway(*, listen: str, upstream: str, drain_seconds: float) -> GatewayChild:
    """Starts a gateway from `listen` to `upstream`, both HOST:PORT."""
    options = (f"--listen={listen}", f"--upstream={upstream}", f"--drain-seconds={round(drain_seconds)}")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "glimpse.gateway", "run", "--end-with-parent", *options),
        stdout=PIPE,
        # Ctrl-C reaches the terminal's whole process group; the gateway must drain first, when the server says so.
        start_new_session=True,
    )
    if process.stdout is None:
        raise RuntimeError("a child with a pipe has no output stream")
    return GatewayChild(process, process.stdout, drain_seconds=drain_seconds)
