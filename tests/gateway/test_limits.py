"""Bounds of the gateway: connections, slow requests, and memory under large bodies."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import grpc.aio
import pytest
from google.api.httpbody_pb2 import HttpBody

from glimpse.gateway import admin
from glimpse.gateway.config import GatewayOptions
from glimpse.gateway.options import GatewayLimits
from glimpse.gateway.run import Envoy, GatewayError
from glimpse.openai.v1 import openai_pb2_grpc
from glimpse.v1 import model_pb2
from tests import http2
from tests.gateway.backend import Backend, Context, Requests, event, read, vanishing
from tests.gateway.conftest import ANY_PORT
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHAT = "/v1/chat/completions"
GET = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n"
MIB = 1 << 20


async def connect(envoy: Envoy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(envoy.address.host, envoy.address.port)


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def is_served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Whether a request on the connection is answered, rather than the connection closed."""
    try:
        writer.write(GET)
        return (await reader.readline()).startswith(b"HTTP/1.1 200")
    except ConnectionError:
        return False


async def test_closes_connections_over_the_limit(backend: Backend, tmp_path: Path) -> None:
    limits = GatewayLimits(max_connections=3)
    async with Envoy(
        GatewayOptions(listen=ANY_PORT, upstream=(backend.address,), limits=limits), run_dir=tmp_path
    ) as envoy:
        connections = [await connect(envoy) for _ in range(5)]
        served = [await is_served(*connection) for connection in connections]
        assert sum(served) == 3
        for _, writer in connections:
            await close(writer)
        while not await _is_new_connection_served(envoy):
            pass


async def test_clients_of_old_connections_connect_anew_and_no_stream_is_cut(tmp_path: Path, backend: Backend) -> None:
    go_on = asyncio.Event()

    async def long(requests: Requests, context: Context) -> AsyncIterator[HttpBody]:
        yield event("first")
        await go_on.wait()
        yield event("last")

    backend.script = long
    options = GatewayOptions(listen=ANY_PORT, upstream=(backend.address,), limits=GatewayLimits(max_connection_age=1))
    async with (
        Envoy(options, run_dir=tmp_path) as envoy,
        grpc.aio.insecure_channel(str(envoy.address)) as channel,
    ):
        stub = openai_pb2_grpc.OpenAIServiceStub(channel)
        stream = stub.CreateChatCompletion(iter([HttpBody()]))
        chunks = [await anext(aiter(stream))]
        while admin.total(tmp_path / "admin.sock", ["http.glimpse.downstream_cx_total"]) < 2:
            await stub.ListModels(model_pb2.ListModelsRequest())
        go_on.set()
        chunks += [chunk async for chunk in stream]
        assert [chunk.data for chunk in chunks] == [b"data: first\n\n", b"data: last\n\n"]
        await _until_told_to_close(envoy)


async def _until_told_to_close(envoy: Envoy) -> None:
    """Sends requests on one HTTP/1.1 connection until a response says that it closes."""
    reader, writer = await connect(envoy)
    closes = False
    while not closes:
        writer.write(GET)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        closes = b"connection: close" in head
        await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
    assert await reader.read() == b""
    await close(writer)


async def _is_new_connection_served(envoy: Envoy) -> bool:
    reader, writer = await connect(envoy)
    try:
        return await is_served(reader, writer)
    finally:
        await close(writer)


async def test_refuses_more_connections_than_files(tmp_path: Path) -> None:
    with pytest.raises(GatewayError, match="'--max-connections': expected at most"):
        await Envoy(
            GatewayOptions(listen=ANY_PORT, upstream=(ANY_PORT,), limits=GatewayLimits(max_connections=1 << 40)),
            run_dir=tmp_path,
        ).start()


async def test_closes_silent_connections(backend: Backend, tmp_path: Path) -> None:
    """Connections that have not said a byte close much sooner. Workers have one each of two others."""
    options = GatewayOptions(
        listen=ANY_PORT, upstream=(backend.address,), limits=GatewayLimits(max_mute_seconds=1, max_idle_seconds=1)
    )
    async with Envoy(options, run_dir=tmp_path, num_workers=2) as envoy:
        mute, idle, other = await connect(envoy), await connect(envoy), await connect(envoy)
        assert await is_served(*idle)
        assert await is_served(*other)
        for worker in range(2):
            name = f"listener.127.0.0.1_0.worker_{worker}.downstream_cx_active"
            assert admin.total(tmp_path / "admin.sock", [name]) == 1
        closed = {
            name: asyncio.create_task(reader.read()) for name, (reader, _) in {"mute": mute, "idle": idle}.items()
        }
        await closed["mute"]
        assert not closed["idle"].done()
        await closed["idle"]
        for _, writer in (mute, idle, other):
            await close(writer)


async def test_idle_connections_close_where_all_are_taken(backend: Backend, tmp_path: Path) -> None:
    limits = GatewayLimits(max_connections=4, max_idle_seconds=3600)
    options = GatewayOptions(listen=ANY_PORT, upstream=(backend.address,), limits=limits)
    async with Envoy(options, run_dir=tmp_path) as envoy:
        idle = [await connect(envoy) for _ in range(4)]
        assert [await is_served(*connection) for connection in idle] == [True] * 4
        while not await _is_new_connection_served(envoy):
            pass
        for _, writer in idle:
            await close(writer)


async def test_frames_of_one_byte_reach_the_server_in_few_messages(envoy: Envoy, backend: Backend) -> None:
    """Each would otherwise be a message, with the work of one in Envoy and in the server."""
    sizes: list[int] = []

    async def script(requests: Requests, context: Context) -> AsyncIterator[HttpBody]:
        sizes.extend([len(request.data) async for request in requests])
        yield event("done")

    backend.script = script
    async with http2.connect(envoy.address.port) as client:
        stream = client.request(http2.rest_headers(CHAT, envoy.address.port), ends=False)
        for _ in range(20_000):
            client.send(http2.DATA, 0, stream, b"x")
        client.send(http2.DATA, http2.END_STREAM, stream, b"")
        while stream not in client.finished:
            await client.settle()
    assert sum(sizes) == 20_000
    assert len(sizes) < 10_000  # much fewer, unless Envoy waits for a slow client between frames


async def test_headers_without_end_close_their_connection(envoy: Envoy) -> None:
    """gRPC's own server reads them for ever."""
    async with http2.connect(envoy.address.port) as client:
        client.send(http2.HEADERS, 0, 1, http2.header_block([(":method", "POST")]))
        while not client.ended.is_set():
            headers = http2.header_block((f"x-{number}", "x" * 100) for number in range(100))
            client.send(http2.CONTINUATION, 0, 1, headers)
            await asyncio.sleep(0)


async def test_ends_responses_that_are_not_read(backend: Backend, tmp_path: Path) -> None:
    """Over HTTP/2 the client keeps its window closed, over HTTP/1.1 it does not read its socket."""

    async def whole(requests: Requests, context: Context) -> AsyncIterator[HttpBody]:
        # As the server does. Envoy sets no time for the end of a response whose trailers are empty.
        context.set_trailing_metadata((("x-glimpse-prompt-tokens", "1"),))
        for _ in range(100):
            yield event("x" * 1000)

    async def endless(requests: Requests, context: Context) -> AsyncIterator[HttpBody]:
        while True:
            yield event("x" * (MIB // 4))

    options = GatewayOptions(listen=ANY_PORT, upstream=(backend.address,), limits=GatewayLimits(max_unread_seconds=1))
    async with Envoy(options, run_dir=tmp_path) as envoy:
        backend.script = whole
        async with http2.connect(envoy.address.port, window=0) as client:
            stream = client.request(http2.rest_headers(CHAT, envoy.address.port), b"{}")
            await until(lambda: stream in client.resets)
        backend.script = endless
        _, writer = await connect(envoy)
        writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{{}}".encode())
        writer.transport.pause_reading()  # pyright: ignore[reportAttributeAccessIssue] - asyncio's own has it
        await until(lambda: not admin.total(tmp_path / "admin.sock", ["http.glimpse.downstream_cx_active"]))
        await close(writer)


async def test_short_of_memory_unread_responses_end_and_others_go_on(backend: Backend, tmp_path: Path) -> None:
    """Each new one takes half a MiB, and together they would take twice the heap."""
    ended, go_on = asyncio.Semaphore(0), asyncio.Semaphore(0)

    async def script(requests: Requests, context: Context) -> AsyncIterator[HttpBody]:
        if await read(requests) == b"innocent":
            while True:
                await go_on.acquire()
                yield event("next")
        context.add_done_callback(lambda _: ended.release())  # pyright: ignore[reportArgumentType] - the stubs are wrong
        for _ in range(60):
            yield event("x" * 5000)

    backend.script = script
    limits = GatewayLimits(max_heap_bytes=32 * MIB, max_unread_seconds=3600)
    options = GatewayOptions(listen=ANY_PORT, upstream=(backend.address,), limits=limits)
    async with (
        Envoy(options, run_dir=tmp_path) as envoy,
        http2.connect(envoy.address.port, window=0) as client,
        grpc.aio.insecure_channel(str(envoy.address)) as channel,
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(tmp_path / "admin.sock"))) as session,
    ):
        stub = openai_pb2_grpc.OpenAIServiceStub(channel)
        stream = stub.CreateChatCompletion(iter([HttpBody(data=b"innocent")]))
        for _ in range(120):
            client.request(http2.rest_headers(CHAT, envoy.address.port), b"{}")
            await ended.acquire()
            await _until_measured(session, tmp_path / "admin.sock", limits)
            go_on.release()
            assert (await anext(aiter(stream))).data == b"data: next\n\n"
            await stub.ListModels(model_pb2.ListModelsRequest())
        assert client.resets


async def _until_measured(session: aiohttp.ClientSession, path: Path, limits: GatewayLimits) -> None:
    """Waits until Envoy's overload manager knows what is allocated, within a hundredth of the heap."""
    measured, allocated = 0, 100
    while abs(measured - allocated) > 1:
        async with session.get("http://envoy/memory") as answer:
            allocated = int(json.loads(await answer.read())["allocated"]) * 100 // limits.max_heap_bytes
        measured = admin.total(path, ["overload.envoy.resource_monitors.fixed_heap.pressure"])


async def test_slow_headers_are_408(envoy: Envoy) -> None:
    reader, writer = await connect(envoy)
    writer.write(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nx-slow: ")
    answer = await reader.read()
    await close(writer)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b'"code":"request_timeout"' in answer


def resident_mib(process_id: int) -> int:
    lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) >> 10


async def test_memory_stays_bounded_while_the_server_does_not_read(backend: Backend, tmp_path: Path) -> None:
    """Ten clients send 60 MiB each. gRPC takes up to 16 MiB of each before the server reads; Envoy keeps little."""
    proceed = asyncio.Event()

    async def script(requests: Requests, context: Context) -> AsyncIterator[HttpBody]:
        await proceed.wait()
        num_bytes = sum([len(request.data) async for request in requests])
        yield event(str(num_bytes))

    async def send(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> bytes:
        reader, writer = connection
        head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {60 * MIB}\r\n\r\n"
        writer.write(head.encode())
        for _ in range(60):
            writer.write(bytes(MIB))
            await writer.drain()
            sent.append(MIB)
        answer = await reader.read()
        await close(writer)
        return answer

    backend.script, sent = script, list[int]()
    async with Envoy(GatewayOptions(listen=ANY_PORT, upstream=(backend.address,)), run_dir=tmp_path) as envoy:
        before = resident_mib(envoy._running().pid)  # pyright: ignore[reportPrivateUsage]
        clients = [asyncio.create_task(send(await connect(envoy))) for _ in range(10)]
        while len(sent) != await _later(sent) or not sent:
            pass
        grown = resident_mib(envoy._running().pid) - before  # pyright: ignore[reportPrivateUsage]
        proceed.set()
        answers = await asyncio.gather(*clients)
    assert all(str(60 * MIB).encode() in answer for answer in answers)
    assert len(sent) == 600
    assert grown < 60, f"Envoy took {grown} MiB"


async def _later(sent: list[int]) -> int:
    """Returns how much is sent after a second: no more once the gateway has stopped reading."""
    await asyncio.sleep(1)
    return len(sent)


async def test_requests_of_a_server_that_vanishes_end(backend: Backend, tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def stall(requests: Requests, context: Context) -> AsyncIterator[HttpBody]:
        if b"stream" in await read(requests):
            yield event("first")
        begun.set()
        await asyncio.Event().wait()

    backend.script = stall
    limits = GatewayLimits(max_silent_seconds=1)
    async with (
        vanishing(backend.address) as (address, gone),
        Envoy(GatewayOptions(listen=ANY_PORT, upstream=(address,), limits=limits), run_dir=tmp_path) as envoy,
        aiohttp.ClientSession(f"http://{envoy.address}") as http,
    ):
        unary = asyncio.ensure_future(http.post(CHAT, data=b"{}"))
        await begun.wait()
        async with http.post(CHAT, data=b'{"stream": true}') as streamed:
            assert await streamed.content.readany() == b"data: first\n\n"
            gone.set()
            with pytest.raises(aiohttp.ClientPayloadError):
                await streamed.content.read()
        async with await unary as answer:
            assert answer.status == 503
