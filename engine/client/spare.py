"""A spare engine process, which has imported what an engine needs: importing torch takes most of a restart."""

import asyncio
import logging
from collections.abc import Sequence

from glimpse.backoff import Backoff
from glimpse.engine.client.child import EngineChild
from glimpse.engine.protocol.messages import Prepare

INITIAL_BACKOFF_SECONDS = 1.0
"""Wait before a spare that died is replaced. Doubled each time."""
MAX_BACKOFF_SECONDS = 60.0

_log = logging.getLogger(__name__)


class SpareEngine:
    """Keeps one spare process. Belongs to an event loop."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._child: EngineChild | None = None
        self._keeping: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the spare. None while there is none."""
        return None if self._child is None else self._child.process.pid

    def keep(self) -> None:
        """Starts a spare, and another one whenever it dies, until `take` or `stop` is called. Idempotent."""
        if self._keeping is None:
            self._keeping = asyncio.create_task(self._keep())

    async def take(self) -> EngineChild | None:
        """Gives the spare away, to be sent `Start`. None if there is none. It may not have finished its imports."""
        await self._stop_keeping()
        child, self._child = self._child, None
        return child

    async def stop(self) -> None:
        """Ends the spare. Idempotent."""
        child = await self.take()
        if child is not None:
            await child.end(grace_seconds=0)

    async def _stop_keeping(self) -> None:
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            keeping.cancel()
            await asyncio.wait([keeping])

    async def _keep(self) -> None:
        backoff = Backoff(INITIAL_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
        while True:
            try:
                self._child = await EngineChild.spawn(self._command)
                self._child.channel.post(Prepare())
                await self._child.process.wait()
                child, self._child = self._child, None
                await child.end(grace_seconds=0)
                _log.warning("the spare engine %s; another starts in %g s", child.exit_reason, backoff.seconds)
            except OSError as error:
                _log.warning(
                    "a spare engine cannot be started: %s; the next attempt is in %g s", error, backoff.seconds
                )
            await asyncio.sleep(backoff.take())
