"""Slow requests: headers and bodies by the byte, bodies that stall before their last byte."""

import asyncio
from collections.abc import AsyncIterator

from glimpse.server.settings import ListenSettings
from tests.chaos import raw_http
from tests.chaos.attack import Arena, ClientAttack
from tests.chaos.raw_http import CHUNK_BYTES, Pieces
from tests.chaos.target import HOST

_STALLED_BYTES = 60 << 20
_MISSING_BYTES = 100
_SECONDS, _LEAST_SECONDS = 12.0, 4.0


async def _trickle(arena: Arena, pieces: Pieces) -> None:
    """Sends pieces for as long as the server takes them."""
    reader, writer = await asyncio.open_connection(HOST, arena.target.http_port)
    try:
        async for piece in pieces():
            writer.write(piece)
            await writer.drain()
        answer = await reader.read(12)
        arena.counts[answer.decode(errors="replace") or "closed without an answer"] += 1
    except OSError:
        arena.counts["connections closed by the server"] += 1
    finally:
        writer.transport.abort()


async def for_a_while(arena: Arena, *each: Pieces) -> None:
    """Sends requests in pieces, all at once, and leaves those that the server has not ended after a while."""
    seconds = max(_LEAST_SECONDS, _SECONDS * arena.scale)
    tasks = [asyncio.create_task(_trickle(arena, pieces)) for pieces in each]
    _, waiting = await asyncio.wait(tasks, timeout=seconds)
    arena.counts["still open when the attack ended"] += len(waiting)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def _headers(arena: Arena) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield f"POST {arena.path()} HTTP/1.1\r\nhost: localhost\r\n".encode()
        for number in range(1000):
            yield f"x-{number}: y\r\n".encode()
            await asyncio.sleep(0.2)

    await for_a_while(arena, *[pieces] * arena.times(100))


async def _bodies(arena: Arena) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield raw_http.head(arena.target, length=100_000, path=arena.path())
        for _ in range(1000):
            yield b" "
            await asyncio.sleep(0.1)

    await for_a_while(arena, *[pieces] * arena.times(100))


async def _stalled(arena: Arena) -> None:
    """Sends bodies that take all of the memory for them but for a few bytes, and one more."""

    def stalling(size: int) -> Pieces:
        async def pieces() -> AsyncIterator[bytes]:
            yield raw_http.head(arena.target, length=size, path=arena.path())
            for start in range(0, size - _MISSING_BYTES, CHUNK_BYTES):
                yield b" " * min(CHUNK_BYTES, size - _MISSING_BYTES - start)
            for _ in range(_MISSING_BYTES - 1):
                yield b" "
                await asyncio.sleep(5)

        return pieces

    memory = ListenSettings().body_in_flight_bytes
    sizes = [_STALLED_BYTES] * (memory // _STALLED_BYTES) + [memory % _STALLED_BYTES, _STALLED_BYTES]
    await for_a_while(arena, *map(stalling, sizes))


ATTACKS = [
    ClientAttack(name="slow-headers", summary="100 connections whose headers come by the line", run=_headers),
    ClientAttack(name="slow-bodies", summary="100 requests whose bodies come by the byte", run=_bodies),
    ClientAttack(
        name="stalled-bodies",
        summary="unfinished bodies of 60 MiB that leave no memory for others; a byte each 5 s",
        run=_stalled,
    ),
]
