"""HTTP/1.1 by hand, for large, slow and broken requests. It reads the response while it still sends."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterable

from tests.chaos.calls import Call, Send
from tests.chaos.endpoints import CHAT
from tests.chaos.target import HOST, Target

CHUNK_BYTES = 1 << 18

Pieces = Callable[[], AsyncIterator[bytes]]
"""Yields what is sent, from the request line on."""


def head(target: Target, *, length: int, path: str = CHAT, content_type: str = "application/json") -> bytes:
    """The request line and the headers of a POST."""
    lines = [
        f"POST {path} HTTP/1.1".encode(),
        f"host: {HOST}:{target.http_port}".encode(),
        f"content-type: {content_type}".encode(),
        f"content-length: {length}".encode(),
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def post(target: Target, parts: Iterable[bytes], *, path: str = CHAT, content_type: str = "application/json") -> Send:
    """A request whose body has these parts, which are not copied; at most an error is read from the response."""
    parts = list(parts)
    start = head(target, length=sum(map(len, parts)), path=path, content_type=content_type)

    async def pieces() -> AsyncIterator[bytes]:
        yield start
        for part in parts:
            view = memoryview(part)
            for place in range(0, len(view), CHUNK_BYTES):
                yield bytes(view[place : place + CHUNK_BYTES])

    return exchange(target.http_port, pieces)


def exchange(port: int, pieces: Pieces) -> Send:
    """Sends pieces and records the response; a response that comes before all are sent ends the sending."""

    async def send(call: Call) -> None:
        reader, writer = await asyncio.open_connection(HOST, port)
        sending = asyncio.create_task(_send(writer, pieces()))
        try:
            await _read_response(reader, call)
        finally:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await sending
            writer.transport.abort()

    return send


async def _send(writer: asyncio.StreamWriter, pieces: AsyncIterator[bytes]) -> None:
    async for piece in pieces:
        writer.write(piece)
        await writer.drain()


async def _read_response(reader: asyncio.StreamReader, call: Call) -> None:
    try:
        status, length = _parse_head(await reader.readuntil(b"\r\n\r\n"))
        body = await reader.readexactly(length) if length is not None else await reader.read(CHUNK_BYTES)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        call.transcript.broke(f"no response: {type(error).__name__}")
        return
    if status == 200:
        call.transcript.finish()
    else:
        call.transcript.error(_code(body) or f"http:{status}")


def _parse_head(data: bytes) -> tuple[int, int | None]:
    line, *headers = data.split(b"\r\n")
    lengths = [header.partition(b":")[2] for header in headers if header.lower().startswith(b"content-length:")]
    return int(line.split()[1]), int(lengths[0]) if lengths else None


def _code(body: bytes) -> str:
    try:
        return json.loads(body)["error"]["code"] or ""
    except (ValueError, KeyError, TypeError):
        return ""
