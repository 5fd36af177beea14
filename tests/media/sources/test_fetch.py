"""The fetcher against a real server on loopback: what arrives, and what is said when it does not."""

import asyncio
import socket

import pytest
from aiohttp.abc import ResolveResult

from glimpse.media.errors import MediaErrorCode
from tests.media.fetching import DnsResolver, get, refusal
from tests.media.web import Web, redirect, respond, stall_after


async def test_what_a_url_leads_to_is_fetched(web: Web) -> None:
    assert await get(web.url("/cat.png")) == b"cat"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_followed(web: Web, status: int) -> None:
    web.answers["/a"] = redirect("b?c=d", status)
    web.answers["/b?c=d"] = redirect(web.url("/cat.png"), status)
    assert await get(web.url("/a")) == b"cat"


async def test_redirects_in_a_ring_end(web: Web) -> None:
    web.answers["/a"] = redirect("/b")
    web.answers["/b"] = redirect("/a")
    error = await refusal(web.url("/a"))
    assert (error.code, len(web.requests)) == (MediaErrorCode.FETCH_FAILED, 6)
    assert "redirects" in error.message


async def test_five_redirects_are_followed(web: Web) -> None:
    for hop in range(5):
        web.answers[f"/{hop}"] = redirect(f"/{hop + 1}")
    web.answers["/5"] = respond(b"there")
    assert await get(web.url("/0")) == b"there"


async def test_a_redirect_without_a_target_fails(web: Web) -> None:
    web.answers["/a"] = respond(b"", status=302)
    assert (await refusal(web.url("/a"))).code == MediaErrorCode.FETCH_FAILED


@pytest.mark.parametrize("status", [204, 206, 304, 400, 401, 403, 404, 418, 500, 503])
async def test_another_status_is_told(web: Web, status: int) -> None:
    web.answers["/a"] = respond(b"", status=status)
    error = await refusal(web.url("/a"))
    assert (error.code, error.message) == (
        MediaErrorCode.FETCH_FAILED,
        f"expected status 200 from the media server, got {status}",
    )


async def test_as_many_bytes_as_allowed_are_read(web: Web) -> None:
    web.answers["/a"] = respond(b"x" * 1000)
    assert await get(web.url("/a"), max_bytes=1000) == b"x" * 1000


async def test_a_body_announced_as_too_large_is_not_read(web: Web) -> None:
    web.answers["/a"] = respond(b"", headers={"Content-Length": "1001"})  # and then nothing comes
    assert (await refusal(web.url("/a"), max_bytes=1000)).code == MediaErrorCode.TOO_LARGE


async def test_an_endless_body_is_left_at_the_cap(web: Web) -> None:
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


async def test_a_body_shorter_than_announced_fails(web: Web) -> None:
    web.answers["/a"] = respond(b"ca", headers={"Content-Length": "3"})
    assert (await refusal(web.url("/a"))).code == MediaErrorCode.FETCH_FAILED


async def test_a_body_longer_than_announced_fails(web: Web) -> None:
    web.answers["/a"] = respond(b"cat and more", headers={"Content-Length": "3"})
    assert (await refusal(web.url("/a"))).code == MediaErrorCode.FETCH_FAILED


async def test_chunks_are_counted_too(web: Web) -> None:
    async def chunked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"190\r\n" + b"x" * 400 + b"\r\n" + b"190\r\n" + b"x" * 400 + b"\r\n0\r\n\r\n")
        await writer.drain()

    web.answers["/a"] = chunked
    assert await get(web.url("/a"), max_bytes=800) == b"x" * 800
    assert (await refusal(web.url("/a"), max_bytes=799)).code == MediaErrorCode.TOO_LARGE


async def test_a_compressed_body_is_not_expanded(web: Web) -> None:
    web.answers["/a"] = respond(b"\x1f\x8b...", headers={"Content-Encoding": "gzip"})
    error = await refusal(web.url("/a"))
    assert (error.code, "compressed" in error.message) == (MediaErrorCode.FETCH_FAILED, True)


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx"])
async def test_a_server_that_stalls_is_given_up(web: Web, start: bytes) -> None:
    web.answers["/a"] = stall_after(start)
    error = await refusal(web.url("/a"), timeout_seconds=0.1)
    assert error.code == MediaErrorCode.FETCH_TIMEOUT
    assert error.message == "the media server did not deliver the file within 0.1 s"


async def test_a_lookup_that_does_not_end_is_given_up() -> None:
    class Silent(DnsResolver):
        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
        ) -> list[ResolveResult]:
            return await asyncio.Future()

    error = await refusal("http://silent.example/", resolver=Silent([]), timeout_seconds=0.1)
    assert error.code == MediaErrorCode.FETCH_TIMEOUT


async def test_what_is_not_http_fails(web: Web) -> None:
    async def banner(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.9\r\n")
        await writer.drain()

    web.answers["/a"] = banner
    error = await refusal(web.url("/a"))
    assert (error.code, "OpenSSH" in error.message) == (MediaErrorCode.FETCH_FAILED, False)


async def test_nobody_at_home() -> None:
    with socket.create_server(("127.0.0.1", 0)) as frame_indices:
        port = frame_indices.getsockname()[1]
    error = await refusal(f"http://127.0.0.1:{port}/")
    assert (error.code, error.message) == (MediaErrorCode.FETCH_FAILED, "cannot connect to the URL's host")


async def test_a_name_that_leads_nowhere() -> None:
    unknown = DnsResolver(socket.gaierror(socket.EAI_NONAME, "nameserver 10.0.0.53 does not know it"))
    error = await refusal("http://nowhere.example/", resolver=unknown)
    assert (error.code, error.message) == (MediaErrorCode.FETCH_FAILED, "the URL's host does not resolve")


async def test_a_fetch_can_be_cancelled_and_leaves_the_server_at_once(web: Web) -> None:
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
    await asyncio.wait_for(gone.wait(), 10)
