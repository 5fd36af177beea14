"""Runs the gateway as a child process, `python -m glimpse.gateway run`. Its first line of output means it is ready."""

import asyncio
import contextlib
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence

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

    def __init__(self, process: Process, output: asyncio.StreamReader) -> None:
        self._process = process
        self._output = output
        self._is_draining = False

    async def ready(self) -> None:
        """Waits until the gateway accepts connections. Raises GatewayDiedError."""
        if not await self._output.readline():
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
        self.drain()
        if await self._ends_within(_FLUSH_SECONDS):
            return
        self._process.terminate()  # the second signal makes the child stop at once
        if not await self._ends_within(_KILL_AFTER_SECONDS):
            self._process.kill()
            await self._process.wait()

    async def _ends_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), seconds)
        return self._process.returncode is not None


async def start_gateway(*, listen: str, upstream: str, drain_seconds: float, flags: Sequence[str] = ()) -> GatewayChild:
    """Starts a gateway from `listen` to `upstream`, both HOST:PORT. `flags` are more flags of `glimpse gateway run`."""
    options = (f"--listen={listen}", f"--upstream={upstream}", f"--drain-seconds={round(drain_seconds)}")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "glimpse.gateway", "run", "--end-with-parent", *options, *flags),
        stdout=PIPE,
        # Ctrl-C reaches the terminal's whole process group; the gateway must drain first, when the server says so.
        start_new_session=True,
    )
    if process.stdout is None:
        raise RuntimeError("a child with a pipe has no output stream")
    return GatewayChild(process, process.stdout)
