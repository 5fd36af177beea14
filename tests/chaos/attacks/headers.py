"""Odd headers, origins, hosts and protocol versions. Each must be answered or refused, and nobody else may notice."""

import asyncio
from collections.abc import Iterator

from tests.chaos.attack import Arena, ClientAttack
from tests.chaos.calls import Call
from tests.chaos.endpoints import CHAT
from tests.chaos.target import HOST

_BODY = b'{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}'
_TIMES = 5
_NO_HTTP = "no HTTP"
"""May be closed without an answer: it looks like the beginning of a TLS handshake, for which the gateway waits."""


async def _odd(arena: Arena) -> None:
    requests = list(_requests(arena))
    for _ in range(arena.times(_TIMES)):
        arena.rng.shuffle(requests)
        await asyncio.gather(*(_send(arena, name, data) for name, data in requests))


async def _send(arena: Arena, name: str, data: bytes) -> None:
    data = data.replace(CHAT.encode(), arena.path().encode(), 1)

    async def send(call: Call) -> None:
        reader, writer = await asyncio.open_connection(HOST, arena.target.http_port)
        try:
            writer.write(data)
            await writer.drain()
            line = (await reader.readline()).decode(errors="replace")
        except ConnectionResetError:
            line = ""
        finally:
            writer.transport.abort()
        if line or name == _NO_HTTP:
            call.transcript.finish()
        else:
            call.transcript.broke(f"{name}: closed without an answer")
        arena.counts[f"{name}: {' '.join(line.split()[1:2]) or 'closed'}"] += 1

    await arena.ask(send)


def _requests(arena: Arena) -> Iterator[tuple[str, bytes]]:
    host = f"host: {HOST}:{arena.target.http_port}".encode()
    json = b"content-type: application/json"
    yield "headers of 9 KiB", _request(host, json, b"x-large: " + b"x" * 9000)
    yield "headers of 50 KiB", _request(host, json, b"cookie: " + b"x" * 50_000)
    yield "headers of 200 KiB", _request(host, json, *[b"x-%d: " % n + b"x" * 1000 for n in range(200)])
    yield "header not in UTF-8", _request(host, json, b"x-odd: \xff\xfe")
    yield "request id not in UTF-8", _request(host, json, b"x-request-id: \xff\xfe")
    yield "request id of 4 KiB", _request(host, json, b"x-request-id: " + b"r" * 4096)
    yield "request id with a control character", _request(host, json, b"x-request-id: a\x01b")
    yield "foreign origin", _request(host, json, b"origin: https://evil.example")
    yield "foreign origin without a content type", _request(host, b"origin: https://evil.example")
    yield "foreign host", _request(b"host: evil.example", json)
    yield "no host", _request(json)
    yield "form", _request(host, b"content-type: text/plain")
    yield "HTTP/1.0", _request(host, json, version=b"1.0")
    yield "gRPC over HTTP/1.1", _request(host, b"content-type: application/grpc", b"te: trailers")
    yield "two lengths", _request(host, json, b"content-length: 5")
    yield "length and chunks", _request(host, json, b"transfer-encoding: chunked")
    yield _NO_HTTP, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64)


def _request(*headers: bytes, version: bytes = b"1.1") -> bytes:
    lines = [b"POST " + CHAT.encode() + b" HTTP/" + version, *headers, b"content-length: %d" % len(_BODY)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + _BODY


ATTACKS = [ClientAttack(name="odd-headers", summary="odd headers, origins, hosts and versions of HTTP", run=_odd)]
