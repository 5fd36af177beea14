"""Process that fetches files, so that what a media server sends costs other fetches a moment and the front end nothing.

`python -m glimpse.media.sources.fetch_worker MEMORY_BYTES` serves the socket that is its standard input and output: it
reads the policy, sends it back and then reads commands, runs all fetches at once in one event loop, and exits when the
other end is gone. It limits its address space, and its CPU time while it does not read commands.
"""

import asyncio
import contextlib
import logging
import math
import os
import socket
import sys
import threading
from functools import partial

from yarl import URL

from glimpse.frames import framed
from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.sources.fetch import INVALID_RESPONSE, fetch_pieces
from glimpse.media.sources.fetch_messages import (
    COMMANDS,
    POLICIES,
    CancelFetch,
    Ended,
    FetchCancelled,
    FetchCompleted,
    FetchFailed,
    FilePiece,
    StartFetch,
)
from glimpse.media.sources.policy import FetchPolicy
from glimpse.media.workers.rlimits import limit_memory, limit_time

_STACK_BYTES = 1 << 20
"""Stack of a thread that looks up names; there may be hundreds."""
_SPARE_SECONDS = 10
"""CPU time for what is not within a fetch's time-out."""

_logger = logging.getLogger(__name__)


def main() -> None:
    """Serves until the front end is gone."""
    threading.stack_size(_STACK_BYTES)
    limit_memory(int(sys.argv[1]))
    connection = socket.socket(fileno=os.dup(0))
    os.dup2(2, 1)  # keeps what libraries print out of the results
    asyncio.run(_serve(connection))
    os._exit(0)  # waits for no lookup of a name


async def _serve(connection: socket.socket) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=connection)
    with contextlib.suppress(ConnectionError):
        if (policy := await POLICIES.receive(reader)) is None:
            return
        writer.write(framed(policy))
        fetcher = _Fetcher(policy, writer)
        while (command := await COMMANDS.receive(reader)) is not None:
            match command:
                case StartFetch():
                    fetcher.start(command)
                case CancelFetch(number=number):
                    fetcher.cancel(number)


class _Fetcher:
    """Runs the fetches of one front end."""

    def __init__(self, policy: FetchPolicy, writer: asyncio.StreamWriter) -> None:
        self._policy = policy
        self._writer = writer
        self._fetches: dict[int, asyncio.Task[Ended]] = {}
        self._longest_seconds = 0.0

    def start(self, start: StartFetch) -> None:
        # The kernel ends a process that still computes when the time of all of its fetches is over.
        self._longest_seconds = max(self._longest_seconds, start.timeout_seconds)
        limit_time(math.ceil(self._longest_seconds) + _SPARE_SECONDS)
        task = self._fetches[start.number] = asyncio.create_task(self._fetch(start))
        task.add_done_callback(partial(self._end, start.number))

    def cancel(self, number: int) -> None:
        """Cancels a fetch, unless it has ended."""
        if number in self._fetches:
            self._fetches[number].cancel()

    def _end(self, number: int, task: asyncio.Task[Ended]) -> None:
        del self._fetches[number]
        self._writer.write(framed(FetchCancelled(number=number) if task.cancelled() else task.result()))

    async def _fetch(self, start: StartFetch) -> Ended:
        async def deliver(piece: bytes) -> None:
            self._writer.write(framed(FilePiece(number=start.number, data=piece)))
            await self._writer.drain()

        try:
            fresh_seconds = await fetch_pieces(
                URL(start.url, encoded=True),
                policy=self._policy,
                max_bytes=start.max_bytes,
                timeout_seconds=start.timeout_seconds,
                deliver=deliver,
            )
        except MediaError as error:
            return FetchFailed(number=start.number, code=error.code, message=error.message)
        except Exception:  # what one server sends ends no other fetch
            _logger.exception("a fetch failed in an unexpected way")
            return FetchFailed(number=start.number, code=MediaErrorCode.FETCH_FAILED, message=INVALID_RESPONSE)
        return FetchCompleted(number=start.number, fresh_seconds=fresh_seconds)


if __name__ == "__main__":
    main()
