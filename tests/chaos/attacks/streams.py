"""Too many streams and requests, and clients that leave."""

import asyncio
import json

import aiohttp

from tests import http2
from tests.chaos.attack import DISCONNECTS, Arena, ClientAttack
from tests.chaos.calls import http_session, rest_stream, rest_unary
from tests.chaos.questions import chat

_STREAMS_ON_ONE_CONNECTION = 1015


async def _storm(arena: Arena) -> None:
    """Four in five leave, each at a moment of its own; the others must get their whole answers."""
    body = chat("Go on.", ignore_eos=True, max_completion_tokens=32)

    async def one(session: aiohttp.ClientSession) -> None:
        await asyncio.sleep(5 * arena.rng.random())
        leaves = arena.rng.random() * 2 if arena.rng.random() < 0.8 else None
        await arena.ask(rest_stream(session, *arena.anywhere(body), leave_after_seconds=leaves), is_sse=True)

    async with http_session(arena.target.url) as session:
        await asyncio.gather(*(one(session) for _ in range(arena.times(800))))


async def _one_connection(arena: Arena) -> None:
    """Opens streams on one HTTP/2 connection and closes the connection."""
    form, path = arena.anywhere(chat("Go on.", stream=True, ignore_eos=True, max_completion_tokens=200))
    body = json.dumps(form).encode()
    headers = http2.rest_headers(path, arena.target.http_port, len(body))
    async with http2.connect(arena.target.http_port) as connection:
        count = arena.times(_STREAMS_ON_ONE_CONNECTION)
        for _ in range(count):
            connection.request(headers, body)
        await connection.drain()
        await asyncio.sleep(1 + arena.rng.random())
        arena.counts.update({f"received {kind}": count for kind, count in connection.received.items()})
        arena.counts["streams"] = count
        arena.counts[DISCONNECTS] = count - connection.received["RST_STREAM"]  # the others were refused


async def _one_client(arena: Arena) -> None:
    """One client asks for hundreds of streams at once, and reads them all."""
    body = chat("Go on.", ignore_eos=True, max_completion_tokens=32)
    async with http_session(arena.target.url) as session:
        sends = [rest_stream(session, *arena.anywhere(body)) for _ in range(arena.times(500))]
        await arena.ask_all(sends, is_sse=True)


async def _at_once(arena: Arena) -> None:
    body = chat("Say hello.", max_completion_tokens=4)
    async with http_session(arena.target.url) as session:
        count = arena.times(3000)
        arena.counts[f"bursts of {count} requests"] = 1
        await arena.ask_all(rest_unary(session, *arena.anywhere(body)) for _ in range(count))


ATTACKS = [
    ClientAttack(
        name="disconnect-storm",
        summary="800 streams over REST, of which four in five leave",
        run=_storm,
        weight=3,
    ),
    ClientAttack(
        name="closed-connection", summary="one HTTP/2 connection with 1,015 open streams closes", run=_one_connection
    ),
    ClientAttack(name="many-streams", summary="one client reads 500 streams at once", run=_one_client),
    ClientAttack(name="many-requests", summary="3,000 requests at once", run=_at_once),
]
