"""A client that closes, floods or resets its connection is felt by its own calls only."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest
import pytest_asyncio
from google.api.httpbody_pb2 import HttpBody

from glimpse.gateway.run import Envoy
from tests import http2
from tests.gateway.backend import Backend, Context, Requests, event
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHAT = "/v1/chat/completions"


@pytest_asyncio.fixture(autouse=True, loop_scope="session")
async def settled(backend: Backend) -> AsyncIterator[None]:
    """Waits after each test until the backend has begun all calls that were on their way: other tests count theirs."""
    yield
    num_calls = -1
    while num_calls != backend.num_calls:
        num_calls = backend.num_calls
        await asyncio.sleep(1)


class Streams:
    """Streams that other clients have open meanwhile."""

    def __init__(self, backend: Backend) -> None:
        self.finish = asyncio.Event()
        self.num_open = 0
        backend.script = self.answer

    async def answer(self, requests: Requests, context: Context) -> AsyncIterator[HttpBody]:
        self.num_open += 1
        yield event("first")
        await self.finish.wait()
        yield event("last")

    async def opened(self, count: int) -> None:
        """Waits until the server has this many more open streams, those of clients that left included."""
        await until(lambda: self.num_open >= count)


@asynccontextmanager
async def other_clients(http: aiohttp.ClientSession, backend: Backend, count: int) -> AsyncGenerator[Streams]:
    """Opens streams over HTTP/1.1; at the end each must have been answered to its end."""
    streams = Streams(backend)
    async with AsyncExitStack() as stack:
        answers = [
            await stack.enter_async_context(
                http.post(CHAT, data=b"{}", headers={"content-type": "application/json"}, timeout=None)
            )
            for _ in range(count)
        ]
        assert [await answer.content.readany() for answer in answers] == [b"data: first\n\n"] * count
        yield streams
        streams.finish.set()
        assert [await answer.content.read() for answer in answers] == [b"data: last\n\n"] * count


async def test_closing_a_connection_with_1015_streams_cuts_no_other(
    http: aiohttp.ClientSession, envoy: Envoy, backend: Backend
) -> None:
    async with other_clients(http, backend, 6) as others:
        async with http2.connect(envoy.address.port) as attacker:
            for _ in range(1015):
                attacker.request(http2.rest_headers(CHAT, envoy.address.port), b"{}")
            await attacker.settle()
            await others.opened(500)
            await attacker.close()
        async with http.get("/v1/models") as answer:
            assert answer.status == 200


async def test_resetting_24000_streams_cuts_no_other(
    http: aiohttp.ClientSession, envoy: Envoy, backend: Backend
) -> None:
    async def reset_400() -> None:
        async with http2.connect(envoy.address.port) as attacker:
            for _ in range(400):
                attacker.reset(attacker.request(http2.rest_headers(CHAT, envoy.address.port), b"{}"))
            await attacker.settle()

    statuses: list[int] = []

    async def ask(attack: asyncio.Future[list[None]]) -> None:
        while not attack.done():
            async with http.get("/v1/models") as answer:
                statuses.append(answer.status)

    async with other_clients(http, backend, 7):
        attack = asyncio.gather(*(reset_400() for _ in range(60)))
        await asyncio.gather(attack, *(ask(attack) for _ in range(4)))
    assert set(statuses) == {200}
    assert backend.num_calls - len(statuses) < 2400  # Envoy keeps resets from the server


async def test_a_connection_has_a_bounded_number_of_streams(envoy: Envoy, backend: Backend) -> None:
    streams = Streams(backend)
    async with http2.connect(envoy.address.port) as client:
        for _ in range(600):
            client.request(http2.rest_headers(CHAT, envoy.address.port), b"{}")
        await client.settle()
        await streams.opened(512)
        await client.settle()  # the answer to the first ping may come before resets
        assert client.resets == dict.fromkeys(range(2 * 512 + 1, 2 * 600, 2), http2.REFUSED_STREAM)
        assert not client.received["GOAWAY"]


async def test_a_flood_of_resets_ends_its_own_connection(envoy: Envoy, backend: Backend) -> None:
    async with http2.connect(envoy.address.port) as client:
        for _ in range(3000):
            client.reset(client.request(http2.rest_headers(CHAT, envoy.address.port), b"{}"))
        await client.ended.wait()
