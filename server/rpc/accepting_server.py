"""A gRPC server that hands RPCs to the event loop as fast as they come, so that clients can take turns there.

`grpc.aio` has two queues in which an RPC waits behind those of all clients, in the order in which they came:

- It asks gRPC's core for the next RPC of a method once it has accepted the one before. Here it asks for many at a time.
- Its thread wakes the loop through a pair of sockets, by a byte for each event, of which the loop reads one a turn.
  Some 280 fit; after them, the thread waits for the loop, and everything that all RPCs wait for comes at one event a
  turn. Here the loop reads all bytes at once.

The end of each write is an event too. While the loop writes to many streams, the thread can be held: it handles all
their ends at once instead of one after another, each with a wake-up of its own.
"""
# ruff: noqa: SLF001 - gRPC has no public function for this

import asyncio
import socket
from collections import Counter
from collections.abc import Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any, cast

import grpc
import grpc.aio
from grpc._cython import cygrpc
from grpc.aio._server import Server

_MOST_AT_ONCE = 64
"""RPCs of a method that are asked for beside the one that `grpc.aio` asks for, once so many have come."""
_MOST_WAKE_UPS = 1 << 16
"""Bytes. More than fit into the socket."""
_SEND_BYTES = 1 << 20
"""A wake-up takes some 760 of them until it is read."""

_core: Any = cygrpc
_writer: socket.socket | None = None
"""What gRPC's thread writes its wake-ups to."""


def accepting_server(
    interceptors: Sequence[grpc.aio.ServerInterceptor], options: Sequence[tuple[str, int]] = ()
) -> grpc.aio.Server:
    """Returns a server. The arguments are those of `grpc.aio.server`."""
    return cast("grpc.aio.Server", _AcceptingServer(interceptors, options))


class _WakeUps(socket.socket):
    """The socket whose bytes say that gRPC has events. A byte follows its event: none is missed by reading many."""

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        return super().recv(max(bufsize, _MOST_WAKE_UPS), flags)


def _socketpair() -> tuple[socket.socket, socket.socket]:
    global _writer
    reader, _writer = socket.socketpair()
    return _WakeUps(fileno=reader.detach()), _writer


# gRPC starts its thread, and makes this pair, for the first of its objects that a process has.
_core.socket = SimpleNamespace(**vars(socket) | {"socketpair": _socketpair})


@contextmanager
def wake_ups_held() -> Generator[None]:
    """Lets gRPC's thread wait until the block ends, once it has a few events. The block must not wait for anything."""
    if (writer := _writer) is None:
        yield
        return
    with suppress(OSError):  # the thread has ended
        writer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    try:
        yield
    finally:
        with suppress(OSError):
            writer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)


class _AcceptingServer(Server):
    def __init__(self, interceptors: Sequence[grpc.aio.ServerInterceptor], options: Sequence[tuple[str, int]]) -> None:
        super().__init__(None, (), interceptors, options, None, None)
        self._interceptors = tuple(interceptors)
        self._handlers: dict[str, Any] = {}
        self._num_accepting = Counter[str]()
        """RPCs that are asked for, by method."""
        self._tasks = set[asyncio.Task[None]]()
        """What accepts RPCs, and what serves them."""

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Any]) -> None:
        super().add_registered_method_handlers(service_name, dict(method_handlers))
        self._handlers |= {f"/{service_name}/{name}": handler for name, handler in method_handlers.items()}

    async def start(self) -> None:
        await super().start()
        resolver = _core._MethodResolver([], self._handlers)
        for method in self._handlers:
            self._ask_for_one_more(method, resolver)

    def _ask_for_one_more(self, method: str, resolver: Any) -> None:
        if self._num_accepting[method] < _MOST_AT_ONCE:
            self._num_accepting[method] += 1
            self._run(self._accept(method, resolver))

    async def _accept(self, method: str, resolver: Any) -> None:
        """Accepts RPCs of a method, one after another, until the server stops; as `grpc.aio` does."""
        server, loop = self._server, asyncio.get_running_loop()
        while server.is_running():
            try:
                state = await server._request_registered_call(method.encode())
            except _core._RequestCallError:
                continue
            self._ask_for_one_more(method, resolver)
            work = _core._handle_rpc(method, resolver, self._interceptors, state, loop, False)
            self._run(_core._schedule_rpc_coro(work, state, loop, method))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
