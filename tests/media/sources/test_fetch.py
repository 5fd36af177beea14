"""Fetching from a real server on loopback: content, limits and errors."""

import asyncio
import socket

import pytest
from aiohttp.abc import ResolveResult

from glimpse.media.errors import MediaErrorCode
from tests.media.fetching import DnsResolver, get, refusal
from tests.media.web import Web, redirect, respond, stall_after


async def test_fetches_a_url(web: Web) -> None:
    assert await get(web.url("/cat.png")) == b"cat"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_follows_redirects(web: Web, status: int) -> None:
    web.answers["/a"] = redirect("b?c=d", status)
    web.answers["/b?c=d"] = redirect(web.url("/cat.png"), status)
    assert await get(web.url("/a")) == b"cat"


async def test_redirect_loops_fail(web: Web) -> None:
    web.answers["/a"] = redirect("/b")
    web.answers["/b"] = redirect("/a")
    error = await refusal(web.url("/a"))
    assert (error.code, len(web.requests)) == (MediaErrorCode.FETCH_FAILED, 6)
    assert "redirects" in error.message


async def test_follows_five_redirects(web: Web) -> None:
    for hop in range(5):
        web.answers[f"/{hop}"] = redirect(f"/{hop + 1}")
    web.answers["/5"] = respond(b"there")
    assert await get(web.url("/0")) == b"there"


async def test_redirect_without_location_fails(web: Web) -> None:
    web.answers["/a"] = respond(b"", status=302)
    assert (await refusal(web.url("/a"))).code == MediaErrorCode.FETCH_FAILED


@pytest.mark.parametrize("status", [204, 206, 304, 400, 401, 403, 404, 418, 500, 503])
async def test_error_names_an_unexpected_status(web: Web, status: int) -> None:
    web.answers["/a"] = respond(b"", status=status)
    error = await refusal(web.url("/a"))
    assert (error.code, error.message) == (
        MediaErrorCode.FETCH_FAILED,
        f"expected status 200 from the media server, got {status}",
    )


async def test_max_bytes_is_inclusive(web: Web) -> None:
    web.answers["/a"] = respond(b"x" * 1000)
    assert await get(web.url("/a"), max_bytes=1000) == b"x" * 1000


async def test_refuses_a_too_large_content_length_without_reading(web: Web) -> None:
    web.answers["/a"] = respond(b"", headers={"Content-Length": "1001"})  # no body follows
    assert (await refusal(web.url("/a"), max_bytes=1000)).code == MediaErrorCode.TOO_LARGE


async def test_stops_reading_an_endless_body_at_the_limit(web: Web) -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()

    web.answers["/a"] = endless
    error = await refusal(web.url("/a"), max_bytes=100_000)
    assert (error.code, error.message) == (
        MediaErrorCode.TOO_LARGE,
        "expected a file of at most 100000 bytes, got more",
    )


async def test_body_shorter_than_content_length_fails(web: Web) -> None:
    web.answers["/a"] = respond(b"ca", headers={"Content-Length": "3"})
    assert (await refusal(web.url("/a"))).code == MediaErrorCode.FETCH_FAILED


async def test_body_longer_than_content_length_fails(web: Web) -> None:
    web.answers["/a"] = respond(b"cat and more", headers={"Content-Length": "3"})
    assert (await refusal(web.url("/a"))).code == MediaErrorCode.FETCH_FAILED


async def test_limits_chunked_bodies(web: Web) -> None:
    async def chunked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"190\r\n" + b"x" * 400 + b"\r\n" + b"190\r\n" + b"x" * 400 + b"\r\n0\r\n\r\n")
        await writer.drain()

    web.answers["/a"] = chunked
    assert await get(web.url("/a"), max_bytes=800) == b"x" * 800
    assert (await refusal(web.url("/a"), max_bytes=799)).code == MediaErrorCode.TOO_LARGE


async def test_refuses_compressed_bodies(web: Web) -> None:
    web.answers["/a"] = respond(b"\x1f\x8b...", headers={"Content-Encoding": "gzip"})
    error = await refusal(web.url("/a"))
    assert (error.code, "compressed" in error.message) == (MediaErrorCode.FETCH_FAILED, True)


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx"])
async def test_stalled_server_times_out(web: Web, start: bytes) -> None:
    web.answers["/a"] = stall_after(start)
    error = await refusal(web.url("/a"), timeout_seconds=0.1)
    assert error.code == MediaErrorCode.FETCH_TIMEOUT
    assert error.message == "the media server did not deliver the file within 0.1 s"


async def test_stalled_dns_lookup_times_out() -> None:
    class Silent(DnsResolver):
        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
        ) -> list[ResolveResult]:
            return await asyncio.Future()

    error = await refusal("http://silent.example/", resolver=Silent([]), timeout_seconds=0.1)
    assert error.code == MediaErrorCode.FETCH_TIMEOUT


async def test_response_that_is_not_http_fails(web: Web) -> None:
    async def banner(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.9\r\n")
        await writer.drain()

    web.answers["/a"] = banner
    error = await refusal(web.url("/a"))
    assert (error.code, "OpenSSH" in error.message) == (MediaErrorCode.FETCH_FAILED, False)


async def test_refused_connection_fails() -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    error = await refusal(f"http://127.0.0.1:{port}/")
    assert (error.code, error.message) == (MediaErrorCode.FETCH_FAILED, "cannot connect to the URL's host")


async def test_unresolvable_host_fails() -> None:
    unknown = DnsResolver(socket.gaierror(socket.EAI_NONAME, "nameserver 10.0.0.53 does not know it"))
    error = await refusal("http://nowhere.example/", resolver=unknown)
    assert (error.code, error.message) == (MediaErrorCode.FETCH_FAILED, "the URL's host does not resolve")


async def test_cancelling_a_fetch_closes_the_connection(web: Web) -> None:
    arrived, gone = asyncio.Event(), asyncio.Event()

    async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.set()
        await stall_after(b"HTTP/1.1 200 OK\r\n")(reader, writer)
        gone.set()

    web.answers["/a"] = stall
    task = asyncio.create_task(get(web.url("/a")))
    await arrived.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await gone.wait()
