"""Writes to clients. Those of a turn of the event loop begin together."""

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Coroutine, Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from glimpse.server.rpc.accepting_server import wake_ups_held

_MANY = 4
"""Messages to a connection that are worth two system calls."""
_MOST_CONNECTIONS = 1024
"""Whose sockets are remembered."""
_UNKNOWN = -1


class Write:
    """Messages that are written one after another, from the next turn of the event loop on. No task need wait for it: a
    wake-up for each token would cost as much as the write."""

    def __init__(self, operation: Coroutine[Any, Any, None], peer: str = "") -> None:
        """`peer`: the other end of the connection, as gRPC writes it, such as "ipv4:127.0.0.1:1234"."""
        self.since = time.monotonic()
        self.peer = peer
        self._operation = operation
        self._later: list[Coroutine[Any, Any, None]] = []
        """Operations that follow."""
        self._has_begun = False
        self._waits_for: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        _burst.add(self)

    def add(self, operation: Coroutine[Any, Any, None]) -> None:
        """Adds what follows. It has not ended yet."""
        self._later.append(operation)

    def begin(self) -> None:
        """Begins it, if it has not begun."""
        if not self._has_begun:
            self._has_begun = True
            self._go_on()

    def _go_on(self) -> None:
        """Runs the operations until one waits, or all have ended."""
        self._waits_for = None
        try:
            self._waits_for = self._operation.send(None)
        except StopIteration:
            if self._later:
                self._operation = self._later.pop(0)
                self._go_on()
        except Exception as error:
            self._error = error
            self._forget_later()

    async def end(self) -> None:
        """Waits until it has ended. Several tasks may. Raises what ends it."""
        self.begin()
        while (waits_for := self._waits_for) is not None:
            if not waits_for.done():
                await asyncio.wait((waits_for,))
            if waits_for is self._waits_for:
                self._go_on()
        if self._error is not None:
            raise self._error

    @property
    def has_ended(self) -> bool:
        """Whether it has begun and is whole."""
        if self._waits_for is not None and self._waits_for.done():
            self._go_on()
        return self._has_begun and self._waits_for is None and self._error is None

    @property
    def waits_for(self) -> asyncio.Future[None] | None:
        """What the client has to read first; None: nothing. It has begun then."""
        self.begin()
        return None if self._waits_for is None or self._waits_for.done() else self._waits_for

    def drop(self) -> None:
        """Ends it, whatever it waits for."""
        if (waits_for := self.waits_for) is not None:
            waits_for.cancel()
        elif self._waits_for is not None:
            self._go_on()
        self._operation.close()
        self._forget_later()

    def _forget_later(self) -> None:
        for operation in self._later:
            operation.close()
        self._later.clear()


class _Burst:
    """Writes that begin in the next turn of the event loop."""

    def __init__(self) -> None:
        self._writes: list[Write] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def add(self, write: Write) -> None:
        loop = asyncio.get_running_loop()
        if not self._writes or loop is not self._loop:  # the one before may have ended before its next turn
            self._loop, self._writes = loop, []
            loop.call_soon(self._begin)
        self._writes.append(write)

    def _begin(self) -> None:
        writes, self._writes = self._writes, []
        counts = Counter([write.peer for write in writes])
        with wake_ups_held(), corked([peer for peer, count in counts.items() if count >= _MANY]):
            for write in writes:
                write.begin()


_burst = _Burst()
_sockets: dict[str, int | None] = {}
"""Connection → descriptor of its socket, which gRPC does not tell. None: it was not found."""


@contextmanager
def corked(peers: Iterable[str]) -> Generator[None]:
    """Sends to these connections when the block ends: gRPC makes a system call for each message, and without this each
    sends a packet and wakes the client."""
    descriptors = [found for peer in peers if (found := _socket_of(peer)) is not None]
    for descriptor in descriptors:
        _set_cork(descriptor, on=True)
    try:
        yield
    finally:
        for descriptor in descriptors:
            _set_cork(descriptor, on=False)


def _set_cork(descriptor: int, *, on: bool) -> None:
    """If the descriptor is another one's by now, nothing is lost: what it sends is sent a little later."""
    with suppress(OSError), _borrowed(descriptor) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, on)


def _socket_of(peer: str) -> int | None:
    """Returns the descriptor of a connection's socket. None: there is none, or on this system it cannot be found."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    known = _sockets.get(peer, _UNKNOWN)
    if known is None or (known != _UNKNOWN and _is_peer(known, host, port)):
        return known
    if len(_sockets) >= _MOST_CONNECTIONS:
        _sockets.clear()
    _sockets[peer] = next((each for each in _descriptors() if _is_peer(each, host, port)), None)
    return _sockets[peer]


def _descriptors() -> list[int]:
    """Returns those that this process has open; on Linux."""
    try:
        return [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]
    except OSError:
        return []


def _is_peer(descriptor: int, host: str, port: str) -> bool:
    """Whether a descriptor is of a socket that is connected with this address."""
    with suppress(OSError), _borrowed(descriptor) as connection:
        name = connection.getpeername()  # of other families a text, or numbers
        return isinstance(name, tuple) and (_host(str(name[0])), str(name[1])) == (_host(host), port)
    return False


def _host(address: str) -> str:
    return address.strip("[]").removeprefix("::ffff:")


@contextmanager
def _borrowed(descriptor: int) -> Generator[socket.socket]:
    """Yields a socket that is gRPC's. Raises OSError if it is none."""
    connection = socket.socket(fileno=descriptor)
    try:
        yield connection
    finally:
        connection.detach()
