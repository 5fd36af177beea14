"""Fetching of media files for one event loop, in a process of its own (`glimpse.media.sources.fetch_worker`).

What media servers send is parsed there alone. Here arrive a file's bytes, in pieces of 64 KiB, and why a fetch failed.
The process may have been compromised by a server, so its results are not trusted.
"""

import asyncio
import contextlib
import itertools
import socket
import sys
from collections.abc import Callable, Sequence

from yarl import URL

from glimpse.frames import TransportError, framed
from glimpse.media.errors import MediaError, MediaErrorCode, too_large
from glimpse.media.sources.fetch_messages import (
    EVENTS,
    POLICIES,
    CancelFetch,
    Ended,
    FetchCompleted,
    FetchFailed,
    FilePiece,
    StartFetch,
)
from glimpse.media.sources.fetched import PIECE_BYTES, Fetched, timed_out
from glimpse.media.sources.policy import FetchPolicy
from glimpse.media.workers.process import Process, end_worker, start_worker

FETCHER_COMMAND = (sys.executable, "-m", "glimpse.media.sources.fetch_worker")

_MEMORY_BYTES = 2 << 30
"""Address space for the program, 512 threads for names, and what 64 fetches hold, which is a few MiB."""
_ENVIRONMENT = {"MALLOC_ARENA_MAX": "2"}
"""Each arena reserves address space, and by default there are eight for each processor."""
_START_SECONDS = 60.0
"""Time for the process to start, which is no media server's fault. One that takes longer hangs."""
_CANCEL_SECONDS = 3.0
"""Time for the process to end a cancelled fetch. A loop that does not get to it hangs."""


class Fetcher:
    """Fetches the files of all requests of one event loop.

    A fetch may be cancelled at any time, which ends it in the process. A process that dies, or hangs when a fetch is
    cancelled or its time is over, is replaced; its other fetches are repeated once.
    """

    def __init__(self, policy: FetchPolicy, *, isolated: bool = True, command: Sequence[str] | None = None) -> None:
        """
        Args:
            policy: Rules on URLs and addresses.
            isolated: Fetch in a process. False fetches in the event loop, which suits a loop that serves one caller.
            command: Command that starts the process; a limit on memory is appended. Default: `FETCHER_COMMAND`.
        """
        self._policy = policy
        self._is_isolated = isolated
        self._command = (*(command or FETCHER_COMMAND), str(_MEMORY_BYTES))
        self._starting: asyncio.Task[_FetcherProcess] | None = None

    async def fetch(
        self, url: URL, *, max_bytes: int, timeout_seconds: float, on_bytes: Callable[[int], None] = lambda _: None
    ) -> Fetched:
        """Fetches a file. The arguments are those of `glimpse.media.sources.fetch.fetch`.

        Raises:
            MediaError: See there; or WORKER_KILLED if two processes in a row ended.
        """
        if not self._is_isolated:
            from glimpse.media.sources.fetch import fetch  # noqa: PLC0415 - a server's processes need no HTTP client

            return await fetch(
                url, policy=self._policy, max_bytes=max_bytes, timeout_seconds=timeout_seconds, on_bytes=on_bytes
            )
        file = _File(max_bytes, on_bytes)
        try:
            ended = await self._fetch_into(file, str(url), max_bytes, timeout_seconds)
        except TimeoutError:
            raise MediaError(*timed_out(timeout_seconds)) from None
        match ended:
            case FetchCompleted(fresh_seconds=fresh_seconds):
                return Fetched(data=bytes(file.data), fresh_seconds=fresh_seconds)
            case FetchFailed(code=code, message=message):
                raise MediaError(code, message)
            case _:
                message = "the file was not fetched: the server's fetcher was killed; retry the request"
                raise MediaError(MediaErrorCode.WORKER_KILLED, message)

    async def close(self) -> None:
        """Ends the process and with it all fetches."""
        if self._starting is not None:
            await asyncio.wait([self._starting])
            if self._starting.exception() is None:
                await self._starting.result().close()

    async def _fetch_into(self, file: "_File", url: str, max_bytes: int, timeout_seconds: float) -> Ended | None:
        """Returns how the fetch ended, or None if two processes ended before. Raises TimeoutError, MediaError."""
        max_bytes = int(max_bytes)  # settings are subclasses of int, which msgspec does not encode
        for _ in range(2):
            file.clear()
            start = StartFetch(number=next(_numbers), url=url, max_bytes=max_bytes, timeout_seconds=timeout_seconds)
            process = await self._process()
            async with asyncio.timeout(timeout_seconds):
                ended = await process.fetch(start, file)
            if ended is not None:
                return ended
        return None

    async def _process(self) -> "_FetcherProcess":
        """Returns the running process; starts one if there is none. Raises OSError if it cannot be started.

        One that ends as it starts is returned too.
        """
        starting = self._starting
        if starting is None or (starting.done() and (starting.exception() or starting.result().has_ended)):
            starting = self._starting = asyncio.create_task(_FetcherProcess.start(self._command, self._policy))
        return await asyncio.shield(starting)  # others wait for it too


_numbers = itertools.count()


class _File:
    """The pieces of a file that have arrived."""

    def __init__(self, max_bytes: int, on_bytes: Callable[[int], None]) -> None:
        self.data = bytearray()
        self._max_bytes = max_bytes
        self._on_bytes = on_bytes
        self._num_told = 0

    def add(self, piece: bytes) -> None:
        """Adds a piece. Raises MediaError: TOO_LARGE, or what the receiver of `on_bytes` raises."""
        num_bytes = len(self.data) + len(piece)
        if num_bytes > self._max_bytes:
            raise too_large(self._max_bytes)
        if num_bytes > self._num_told:  # else told before the fetch was repeated
            self._on_bytes(num_bytes - self._num_told)
            self._num_told = num_bytes
        self.data += piece

    def clear(self) -> None:
        """Forgets the pieces, for the fetch is repeated."""
        self.data.clear()


class _FetcherProcess:
    """A running process."""

    def __init__(self, process: Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.has_ended = False
        self._has_begun = asyncio.Event()
        """The process fetches, or has ended."""
        self._process = process
        self._reader = reader
        self._writer = writer
        self._fetches: dict[int, asyncio.Queue[bytes | Ended | None]] = {}
        """What arrives for each fetch that has not ended; None: the process has ended."""
        self._receiving = asyncio.create_task(self._receive())

    @classmethod
    async def start(cls, command: Sequence[str], policy: FetchPolicy) -> "_FetcherProcess":
        """Starts a process, and waits until it fetches or has ended. Raises OSError."""
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_unix_connection(sock=ours)
            try:
                process = await asyncio.to_thread(start_worker, command, _ENVIRONMENT, connection=theirs)
            except BaseException:
                writer.close()
                raise
        writer.write(framed(policy))
        started = cls(process, reader, writer)
        await started._has_begun.wait()
        return started

    async def fetch(self, start: StartFetch, file: _File) -> Ended | None:
        """Fetches a file and returns how the fetch ended, or None if the process ended before. Raises MediaError."""
        if self.has_ended:
            return None
        arriving = self._fetches[start.number] = asyncio.Queue()
        self._writer.write(framed(start))
        try:
            while isinstance(event := await arriving.get(), bytes):
                file.add(event)
            return event
        finally:
            self._cancel(start.number)

    async def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        await asyncio.wait([self._receiving])

    def _cancel(self, number: int) -> None:
        """Cancels a fetch that has not ended. Its process is killed unless it ends it soon."""
        if number in self._fetches and not self.has_ended:
            self._writer.write(framed(CancelFetch(number=number)))
            asyncio.get_running_loop().call_later(_CANCEL_SECONDS, self._kill_if_running, number)

    def _kill_if_running(self, number: int) -> None:
        if number in self._fetches and not self.has_ended:
            self._process.kill()

    async def _receive(self) -> None:
        try:
            with contextlib.suppress(OSError, TransportError):
                async with asyncio.timeout(_START_SECONDS):
                    await POLICIES.receive(self._reader)
                self._has_begun.set()
                while (event := await EVENTS.receive(self._reader)) is not None:
                    self._deliver(event)
        finally:
            self.has_ended = True
            self._has_begun.set()
            for arriving in self._fetches.values():
                arriving.put_nowait(None)
            self._writer.close()
            await asyncio.to_thread(end_worker, self._process)

    def _deliver(self, event: FilePiece | Ended) -> None:
        """Raises TransportError if the process sends what it should not."""
        arriving = self._fetches.get(event.number)
        if arriving is None:
            raise TransportError("there is no such fetch")
        if not isinstance(event, FilePiece):
            del self._fetches[event.number]
            arriving.put_nowait(event)
        elif 0 < len(event.data) <= PIECE_BYTES:
            arriving.put_nowait(event.data)
        else:
            raise TransportError("expected a piece of a file")
