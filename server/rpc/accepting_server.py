"""A gRPC server that accepts several RPCs of a method at a time.

`grpc.aio` asks gRPC's core for the next RPC of a method once it has accepted the one before: some five turns of the
event loop later, each of which waits for what else the loop does. So an RPC would wait for seconds behind a few hundred
others of its method, before anything knows whose they are. Here further RPCs are asked for meanwhile.
"""
# ruff: noqa: SLF001 - gRPC has no public function for this

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, cast

import grpc
import grpc.aio
from grpc._cython import cygrpc
from grpc.aio._server import Server

_MORE_AT_ONCE = 8
"""RPCs of a method that are asked for beside the one that `grpc.aio` asks for."""

_core: Any = cygrpc


def accepting_server(
    interceptors: Sequence[grpc.aio.ServerInterceptor], options: Sequence[tuple[str, int]] = ()
) -> grpc.aio.Server:
    """Returns a server. The arguments are those of `grpc.aio.server`."""
    return cast("grpc.aio.Server", _AcceptingServer(interceptors, options))


class _AcceptingServer(Server):
    def __init__(self, interceptors: Sequence[grpc.aio.ServerInterceptor], options: Sequence[tuple[str, int]]) -> None:
        super().__init__(None, (), interceptors, options, None, None)
        self._interceptors = tuple(interceptors)
        self._handlers: dict[str, Any] = {}
        self._tasks = set[asyncio.Task[None]]()
        """What accepts RPCs, and what serves them."""

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Any]) -> None:
        super().add_registered_method_handlers(service_name, dict(method_handlers))
        self._handlers |= {f"/{service_name}/{name}": handler for name, handler in method_handlers.items()}

    async def start(self) -> None:
        await super().start()
        resolver = _core._MethodResolver([], self._handlers)
        for method in self._handlers:
            for _ in range(_MORE_AT_ONCE):
                self._run(self._accept(method, resolver))

    async def _accept(self, method: str, resolver: Any) -> None:
        """Accepts RPCs of a method, one after another, until the server stops; as `grpc.aio` does."""
        server, loop = self._server, asyncio.get_running_loop()
        while server.is_running():
            try:
                state = await server._request_registered_call(method.encode())
            except _core._RequestCallError:
                continue
            work = _core._handle_rpc(method, resolver, self._interceptors, state, loop, False)
            self._run(_core._schedule_rpc_coro(work, state, loop, method))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
