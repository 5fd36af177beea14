"""Requests of one client that hold all they can of what clients share before the engine."""

import asyncio
import gzip
import io
import json
import struct
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import PIL.Image

from tests import http2
from tests.chaos import raw_http
from tests.chaos.attack import Arena, ClientAttack
from tests.chaos.calls import Send, http_session, rest_unary
from tests.chaos.questions import chat, chat_with_images, typed
from tests.chaos.target import HOST

_SECONDS, _LEAST_SECONDS = 15.0, 5.0
_FACADE = "/glimpse.openai.v1.OpenAIService/CreateChatCompletion"
_STREAM = "/glimpse.v1.ChatService/StreamChatCompletion"

MediaServer = Callable[[asyncio.StreamWriter], Awaitable[None]]
"""Answers a request for a medium."""


def attack_seconds(arena: Arena) -> float:
    """How long an attack goes on."""
    return max(_LEAST_SECONDS, _SECONDS * arena.scale)


@asynccontextmanager
async def _media_server(arena: Arena, answer: MediaServer) -> AsyncGenerator[Callable[[int], str]]:
    """Serves hostile media; yields what makes their URLs."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arena.counts["fetches"] += 1
        try:
            await reader.readuntil(b"\r\n\r\n")
            await answer(writer)
        except (OSError, asyncio.IncompleteReadError):
            arena.counts["fetches that the server ended"] += 1
        finally:
            writer.transport.abort()

    async with await asyncio.start_server(serve, HOST, arena.target.media_port):
        yield lambda number: f"http://{HOST}:{arena.target.media_port}/{arena.rng.getrandbits(64):x}/{number}"


async def _early_hints(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" * 1000)
        await writer.drain()


async def _small_chunks(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"1\r\nx\r\n" * 10_000)
        await writer.drain()


async def _drips(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(1)


def _hostile_media(
    answer: MediaServer, num_requests: int, num_images: int
) -> Callable[[Arena], Coroutine[Any, Any, None]]:
    """Asks about images of a hostile server."""

    async def run(arena: Arena) -> None:
        async with _media_server(arena, answer) as url, http_session(arena.target.url) as session:
            bodies = [
                chat_with_images([url(number) for number in range(num_images)])
                for _ in range(arena.times(num_requests))
            ]
            await arena.ask_all(rest_unary(session, *arena.anywhere(body)) for body in bodies)

    return run


async def ask_about_flat_images(arena: Arena) -> None:
    """Small files that are large images: each takes a decoder a second."""
    file = io.BytesIO()
    PIL.Image.new("RGB", (8000, 8000)).save(file, "PNG")

    def body() -> dict[str, Any]:
        # What follows the last chunk of a PNG is ignored, so that each file is another one.
        return chat_with_images([file.getvalue() + arena.rng.randbytes(8) for _ in range(16)])

    async with http_session(arena.target.url) as session:
        leave = [leaving(rest_unary(session, *arena.anywhere(body())), attack_seconds(arena)) for _ in range(10)]
        await arena.ask_all(leave)


def leaving(send: Send, seconds: float) -> Send:
    """Returns a request like `send`, of a client that leaves after a while."""

    async def leaving(call: Any) -> None:
        try:
            async with asyncio.timeout(seconds):
                await send(call)
        except TimeoutError:
            call.transcript.left()

    return leaving


def _patterns(count: int, name: str) -> dict[str, Any]:
    pattern = {"type": "string"}
    return {
        "type": "object",
        "properties": {f"p{n}": pattern | {"pattern": f"^[a-z]{{1,{n % 30 + 1}}}{name}{n}$"} for n in range(count)},
    }


async def _large_tools(arena: Arena) -> None:
    """Eight megabytes of tools in each request."""
    tools = [
        {"type": "function", "function": {"name": f"f{number}", "parameters": _patterns(900, f"t{number}")}}
        for number in range(128)
    ]
    body = chat("Go on.", tools=tools, tool_choice="auto")

    def post() -> Send:
        form, path = arena.anywhere(body)
        return raw_http.post(arena.target, (json.dumps(form).encode(),), path=path)

    await arena.ask_all(leaving(post(), attack_seconds(arena)) for _ in range(arena.times(8)))


async def _many_grammars(arena: Arena) -> None:
    """Distinct schemas, more than any cache of grammars has."""

    def body() -> Mapping[str, Any]:
        schema = _patterns(250, f"{arena.rng.getrandbits(32):x}")
        return chat(
            "Go on.",
            max_completion_tokens=2,
            response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
        )

    async with http_session(arena.target.url) as session:
        await arena.ask_all([rest_unary(session, *arena.anywhere(body())) for _ in range(arena.times(150))])


async def _prompt_logprobs(arena: Arena) -> None:
    body = {"prompt": [arena.rng.randrange(100, 1000) for _ in range(7900)], "max_tokens": 1, "prompt_logprobs": 20}
    document = json.dumps(body).encode()
    await arena.ask_all(raw_http.post(arena.target, (document,), path="/v1/completions") for _ in range(arena.times(6)))


async def _compressed_messages(arena: Arena) -> None:
    """Messages of gRPC that are a thousand times as large as their bytes."""
    data = gzip.compress(bytes(58 << 20))
    message = b"\x01" + struct.pack(">I", len(data)) + data
    headers = [*http2.grpc_headers(_FACADE, arena.target.grpc_port), ("grpc-encoding", "gzip")]

    async def one() -> None:
        async with http2.connect(arena.target.grpc_port) as connection:
            connection.request(headers, message)
            await connection.drain()
            await asyncio.sleep(attack_seconds(arena))
            arena.counts["messages"] += 1

    await _all(arena, [one() for _ in range(arena.times(40))])


async def _closed_windows(arena: Arena) -> None:
    """Streams with many log-probabilities whose client takes not a byte."""
    options = {"ignore_eos": True, "max_completion_tokens": 400, "logprobs": True, "top_logprobs": 20}
    data = typed("Go on.", **options).SerializeToString()
    message = b"\0" + struct.pack(">I", len(data)) + data
    async with http2.connect(arena.target.grpc_port) as connection:
        connection.settings(http2.window_setting(0))
        for _ in range(arena.times(500)):
            connection.request(http2.grpc_headers(_STREAM, arena.target.grpc_port), message)
        await connection.drain()
        await asyncio.sleep(attack_seconds(arena))
        arena.counts.update(connection.received)


async def _slow_readers(arena: Arena) -> None:
    """Streams with many log-probabilities whose clients read a byte a second."""
    members = {"stream": True, "ignore_eos": True, "max_completion_tokens": 400, "logprobs": True, "top_logprobs": 20}
    body = json.dumps(chat("Go on.", **members)).encode()
    until = time.monotonic() + attack_seconds(arena)

    async def one() -> None:
        reader, writer = await asyncio.open_connection(HOST, arena.target.http_port, limit=1)
        writer.write(raw_http.head(arena.target, length=len(body)) + body)
        while time.monotonic() < until and await reader.read(1):  # noqa: ASYNC110 - its pace is the attack
            await asyncio.sleep(1)
        arena.counts["streams"] += 1
        writer.transport.abort()

    await _all(arena, [one() for _ in range(arena.times(400))])


async def _tiny_frames(arena: Arena) -> None:
    """Bodies in frames of a byte."""
    until = time.monotonic() + attack_seconds(arena)

    async def one() -> None:
        async with http2.connect(arena.target.http_port) as connection:
            stream = connection.request(http2.rest_headers(arena.path(), arena.target.http_port, 50 << 20), ends=False)
            while time.monotonic() < until:
                for _ in range(1000):
                    connection.send(http2.DATA, 0, stream, b" ")
                arena.counts["frames"] += 1000
                await connection.drain()

    await _all(arena, [one() for _ in range(4)])


async def _all(arena: Arena, works: list[Any]) -> None:
    for result in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(result, OSError):
            arena.counts["connections closed by the server"] += 1
        elif isinstance(result, BaseException):
            raise result


def _attacks() -> Iterator[ClientAttack]:
    yield ClientAttack(
        name="endless-hints",
        summary="6 image URLs that answer with endless early hints",
        run=_hostile_media(_early_hints, 6, 1),
    )
    yield ClientAttack(
        name="small-chunks", summary="6 image URLs in endless chunks of a byte", run=_hostile_media(_small_chunks, 6, 1)
    )
    yield ClientAttack(
        name="dripping-media", summary="40 requests with 4 URLs of a byte a second", run=_hostile_media(_drips, 40, 4)
    )
    yield ClientAttack(name="flat-images", summary="160 PNGs of 64 million pixels in 190 KB", run=ask_about_flat_images)
    yield ClientAttack(name="large-tools", summary="8 requests with 128 tools of 900 patterns", run=_large_tools)
    yield ClientAttack(name="many-grammars", summary="150 schemas of 250 patterns at once", run=_many_grammars)
    yield ClientAttack(name="prompt-logprobs", summary="log-probabilities of 7,900 tokens", run=_prompt_logprobs)
    yield ClientAttack(
        name="compressed-messages", summary="40 messages of 58 MiB in 59 KB for gRPC's port", run=_compressed_messages
    )
    yield ClientAttack(name="closed-windows", summary="500 gRPC streams with a closed window", run=_closed_windows)
    yield ClientAttack(name="slow-readers", summary="400 clients that read a byte a second", run=_slow_readers)
    yield ClientAttack(name="tiny-frames", summary="bodies in HTTP/2 frames of a byte", run=_tiny_frames)


ATTACKS = list(_attacks())
