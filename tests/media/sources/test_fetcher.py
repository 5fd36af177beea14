"""Fetching in a process of its own: same files and errors, and nothing that a media server sends is parsed here."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from glimpse.frames import framed
from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.sources import fetcher as fetcher_module
from glimpse.media.sources.fetch_messages import CancelFetch, FilePiece
from glimpse.media.sources.fetched import PIECE_BYTES
from glimpse.media.sources.fetcher import FETCHER_COMMAND, Fetcher
from glimpse.media.workers.process import start_worker
from tests.media.fetching import LOOPBACK_ONLY
from tests.media.web import Web, redirect, respond, stall_after

CODE = (sys.executable, "-c")
HANGS = """
import time
from glimpse.media.sources import fetch_worker
fetch = fetch_worker.fetch_pieces
async def hang_or_fetch(url, **options):
    if url.path == "/hang": time.sleep(600)
    return await fetch(url, **options)
fetch_worker.fetch_pieces = hang_or_fetch
fetch_worker.main()
"""


@pytest.fixture
async def fetcher(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fetcher]:
    """A fetcher in a test whose own process opens no connection and looks up no name."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("expected HTTP and DNS in the fetcher process alone")

    monkeypatch.setattr(aiohttp.ClientSession, "__init__", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    fetcher = Fetcher(LOOPBACK_ONLY)
    yield fetcher
    await fetcher.close()


async def get(fetcher: Fetcher, url: str, *, max_bytes: int = 1 << 20, seconds: float = 20, **options: Any) -> bytes:
    return (await fetcher.fetch(URL(url), max_bytes=max_bytes, timeout_seconds=seconds, **options)).data


async def refusal(fetcher: Fetcher, url: str, **options: Any) -> MediaError:
    with pytest.raises(MediaError) as caught:
        await get(fetcher, url, **options)
    return caught.value


async def process_id(fetcher: Fetcher) -> int:
    process = await fetcher._process()  # pyright: ignore[reportPrivateUsage]
    return process._process.pid  # pyright: ignore[reportPrivateUsage]


async def test_files_and_errors_are_those_of_the_fetch(fetcher: Fetcher, web: Web) -> None:
    body, told = os.urandom(PIECE_BYTES * 3 + 1), list[int]()
    web.answers["/a"] = redirect("/b?c=d")
    web.answers["/b?c=d"] = respond(body, headers={"Cache-Control": "max-age=60"})
    fetched = await fetcher.fetch(URL(web.url("/a")), max_bytes=1 << 20, timeout_seconds=20, on_bytes=told.append)
    assert (fetched.data, fetched.fresh_seconds) == (body, 0)  # the redirect may change
    assert told == [PIECE_BYTES] * 3 + [1]
    kept = await fetcher.fetch(URL(web.url("/b?c=d")), max_bytes=1 << 20, timeout_seconds=20)
    assert (kept.data, kept.fresh_seconds) == (body, 60)
    error = await refusal(fetcher, web.url("/b?c=d"), max_bytes=1000)
    assert (error.code, error.message) == (
        MediaErrorCode.TOO_LARGE,
        "expected a file of at most 1000 bytes, got more",
    )
    error = await refusal(fetcher, web.url("/missing"))
    assert (error.code, error.message) == (
        MediaErrorCode.FETCH_FAILED,
        "expected status 200 from the media server, got 404",
    )
    error = await refusal(fetcher, web.url("/cat.png", "127.0.0.2"))
    assert (error.code, error.message) == (MediaErrorCode.URL_REFUSED, "the URL's host is not a public address")


@pytest.mark.parametrize(
    ("start", "again", "code"),
    [
        (b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 1000, MediaErrorCode.FETCH_FAILED),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"1\r\nx\r\n" * 1000,
            MediaErrorCode.FETCH_FAILED,
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", b"x", MediaErrorCode.FETCH_TIMEOUT),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n", b"", MediaErrorCode.FETCH_TIMEOUT),
    ],
    ids=["endless early hints", "endless chunks of a byte", "a byte at a time", "an early hint and nothing"],
)
async def test_hostile_servers_delay_nobody(
    fetcher: Fetcher, web: Web, start: bytes, again: bytes, code: MediaErrorCode
) -> None:
    began = asyncio.Event()

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(start)
        while True:
            writer.write(again)
            await writer.drain()
            began.set()
            await asyncio.sleep(0 if len(again) > 1 else 0.05)

    web.answers["/hostile"] = flood
    assert await get(fetcher, web.url("/cat.png")) == b"cat"  # starts the process
    seconds = 0.3 if code is MediaErrorCode.FETCH_TIMEOUT else 60
    hostile = [asyncio.create_task(refusal(fetcher, web.url("/hostile"), seconds=seconds)) for _ in range(6)]
    await began.wait()
    assert await get(fetcher, web.url("/cat.png")) == b"cat"
    errors = await asyncio.gather(*hostile)
    assert {error.code for error in errors} == {code}
    if code is MediaErrorCode.FETCH_TIMEOUT:
        assert errors[0].message == "the media server did not deliver the file within 0.3 s"


async def test_a_fetch_ends_when_its_caller_leaves(fetcher: Fetcher, web: Web) -> None:
    arrived, gone = asyncio.Event(), asyncio.Event()

    async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.set()
        try:
            await stall_after(b"HTTP/1.1 200 OK\r\n\r\n" + bytes(PIECE_BYTES))(reader, writer)
        finally:  # a client that leaves something unread resets the connection
            gone.set()

    web.answers["/a"] = stall
    task = asyncio.create_task(get(fetcher, web.url("/a")))
    await arrived.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await gone.wait()

    def exceed(_: int) -> None:
        raise MediaError(MediaErrorCode.OVERLOADED, "too much")

    gone.clear()
    assert (await refusal(fetcher, web.url("/a"), on_bytes=exceed)).code is MediaErrorCode.OVERLOADED
    await gone.wait()
    pid = await process_id(fetcher)
    left = asyncio.create_task(get(fetcher, web.url("/a")))
    await asyncio.sleep(0)
    left.cancel()  # before the process has begun
    assert await get(fetcher, web.url("/cat.png")) == b"cat"
    assert await process_id(fetcher) == pid


async def test_fetches_of_a_killed_process_are_repeated_once(fetcher: Fetcher, web: Web) -> None:
    told, began = list[int](), asyncio.Event()

    def tell(num_bytes: int) -> None:
        told.append(num_bytes)
        began.set()

    async def kill_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(web.requests) == 1:
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + bytes(PIECE_BYTES))
            await began.wait()
            os.kill(await process_id(fetcher), signal.SIGKILL)
        else:
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + bytes(PIECE_BYTES + 1))

    async def kill_always(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        os.kill(await process_id(fetcher), signal.SIGKILL)
        await reader.read()

    web.answers |= {"/once": kill_once, "/always": kill_always}
    assert await get(fetcher, web.url("/once"), on_bytes=tell) == bytes(PIECE_BYTES + 1)
    assert told == [PIECE_BYTES, 1]
    error = await refusal(fetcher, web.url("/always"))
    assert (error.code, error.message) == (
        MediaErrorCode.WORKER_KILLED,
        "the file was not fetched: the server's fetcher was killed; retry the request",
    )
    assert await get(fetcher, web.url("/cat.png")) == b"cat"


async def test_the_start_of_the_process_takes_no_time_of_a_fetch(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(gate := tmp_path / "gate")
    code = f"open({str(gate)!r}).read(); from glimpse.media.sources.fetch_worker import main; main()"
    fetcher = Fetcher(LOOPBACK_ONLY, command=(*CODE, code))
    fetching = asyncio.create_task(get(fetcher, web.url("/cat.png"), seconds=20))
    opened = await asyncio.to_thread(gate.open, "w")  # once the process has come there
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "time", partial(lambda time: time() + 30, loop.time))
    opened.close()
    assert await fetching == b"cat"
    await fetcher.close()


async def test_a_process_that_hangs_is_replaced(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher_module, "_CANCEL_SECONDS", 0.1)
    fetcher = Fetcher(LOOPBACK_ONLY, command=(*CODE, HANGS))
    assert await get(fetcher, web.url("/cat.png")) == b"cat"
    hanging = asyncio.create_task(refusal(fetcher, web.url("/hang"), seconds=0.2))
    await asyncio.sleep(0)
    assert await get(fetcher, web.url("/cat.png")) == b"cat"  # by the next process
    assert (await hanging).code is MediaErrorCode.FETCH_TIMEOUT
    await fetcher.close()


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (FilePiece(number=0, data=b"x" * 70_000), MediaErrorCode.WORKER_KILLED),
        (FilePiece(number=0, data=b""), MediaErrorCode.WORKER_KILLED),
        (FilePiece(number=7, data=b"x"), MediaErrorCode.WORKER_KILLED),
        (CancelFetch(number=0), MediaErrorCode.WORKER_KILLED),
        (FilePiece(number=0, data=b"x" * 1001), MediaErrorCode.TOO_LARGE),
    ],
    ids=["too long a piece", "an empty piece", "another fetch", "no message", "too long a file"],
)
async def test_results_are_not_trusted(
    monkeypatch: pytest.MonkeyPatch, reply: FilePiece | CancelFetch, code: MediaErrorCode
) -> None:
    monkeypatch.setattr(fetcher_module, "_numbers", iter([0, 0]))
    fetcher = Fetcher(LOOPBACK_ONLY, command=(*CODE, replying(reply)))
    assert (await refusal(fetcher, "http://127.0.0.1/", max_bytes=1000)).code is code
    await fetcher.close()


def replying(reply: FilePiece | CancelFetch) -> str:
    """Returns the code of a process that answers the first fetch with this message."""
    return (
        "import os, sys; read = sys.stdin.buffer.read\n"
        "os.write(1, (head := read(4)) + read(int.from_bytes(head, 'little')))\n"
        "read(int.from_bytes(read(4), 'little'))\n"
        f"os.write(1, {bytes(framed(reply))!r}); read(1)"
    )


async def test_the_process_ends_with_the_server() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        process = await asyncio.to_thread(start_worker, (*FETCHER_COMMAND, str(2 << 30)), connection=theirs)
    ours.close()  # as the kernel does when the server is killed
    assert await asyncio.to_thread(process.wait, 60) == 0
