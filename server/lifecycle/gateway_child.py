"""The gateway as a child process: `python -m glimpse.gateway run`. Its first line of output means that it is ready."""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process

_KILL_AFTER_SECONDS = 10.0
"""Given to the child, beyond what draining takes, for ending after it was told to."""


class GatewayDiedError(Exception):
    """The gateway ended by itself."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the gateway (Envoy) ended with status {status}; it may have said why above")


class GatewayChild:
    """A gateway that was started. Made by `start_gateway`."""

    def __init__(self, process: Process, output: asyncio.StreamReader, *, drain_seconds: float) -> None:
        self._process = process
        self._output = output
        self._drain_seconds = drain_seconds

    async def ready(self) -> None:
        """Waits until it takes connections. Raises GatewayDiedError."""
        if not await self._output.readline():
            raise GatewayDiedError(await self._process.wait())

    async def watch(self) -> None:
        """Raises GatewayDiedError when it ends."""
        raise GatewayDiedError(await self._process.wait())

    async def stop(self) -> None:
        """Lets running requests end, then ends it. A second call, at the same time, does not wait for requests."""
        if self._process.returncode is not None:
            return
        # To the child a second signal means: now.
        self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), self._drain_seconds + _KILL_AFTER_SECONDS)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


async def start_gateway(*, listen: str, upstream: str, drain_seconds: float) -> GatewayChild:
    """Starts the gateway between two addresses of the form HOST:PORT."""
    options = (f"--listen={listen}", f"--upstream={upstream}", f"--drain-seconds={round(drain_seconds)}")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "glimpse.gateway", "run", "--end-with-parent", *options),
        stdout=PIPE,
        # Ctrl-C reaches every process of the terminal's group; this one is told when it is its turn.
        start_new_session=True,
    )
    if process.stdout is None:
        raise RuntimeError("a child with a pipe has no output stream")
    return GatewayChild(process, process.stdout, drain_seconds=drain_seconds)
