"""Handlers of the suite's web server, named after what is wrong with their responses."""

import asyncio
import contextlib
import gzip

from tests.hostile.urls import SERVED
from tests.hostile.zone import HOST
from tests.media.images import encode, scene
from tests.media.web import Answer, Web, redirect, respond, stall_after

IMAGE = encode(scene(56, 56), "PNG")
_OK = b"HTTP/1.1 200 OK\r\n"


def add_handlers(web: Web) -> None:
    """Adds all handlers to the server. Raises KeyError for a path without a handler."""
    answers = _images() | _redirects(web.port) | _statuses() | _bodies() | _protocol() | _slow()
    web.answers |= {f"/{name.replace(' ', '-')}": answers[name] for name in SERVED}
    web.answers["/cat.png"] = respond(IMAGE)
    web.answers |= {f"/hop{hops}": redirect(f"/hop{hops - 1}") for hops in range(1, 7)}
    web.answers["/hop0"] = respond(IMAGE)


def _images() -> dict[str, Answer]:
    def typed(body: bytes, kind: str) -> Answer:
        return respond(body, headers={"Content-Type": kind})

    return {
        "good": typed(IMAGE, "image/png"),
        "png as html": typed(IMAGE, "text/html"),
        "png as video": typed(IMAGE, "video/mp4"),
        "without a content type": respond(IMAGE),
        "html as png": typed(b"<!DOCTYPE html><img src='http://127.0.0.1/'>", "image/png"),
        "svg": typed(b"<svg><image href='file:///etc/passwd'/></svg>", "image/svg+xml"),
        "json as jpeg": typed(b'{"secret": 1}', "image/jpeg"),
        "playlist as png": typed(b"#EXTM3U\nfile:///etc/passwd\n", "image/png"),
        "empty": typed(b"", "image/png"),
    }


def _redirects(port: int) -> dict[str, Answer]:
    return {
        "redirected": redirect("/cat.png"),
        "five redirects": redirect("/hop4"),
        "six redirects": redirect("/hop5"),
        "to loopback": redirect(f"http://127.0.0.1:{port}/cat.png"),
        "to loopback in hex": redirect(f"http://0x7f000001:{port}/cat.png"),
        "to IPv6 loopback": redirect(f"http://[::1]:{port}/cat.png"),
        "to metadata": redirect("http://169.254.169.254/latest/meta-data/"),
        "to another port": redirect(f"http://{HOST}:22/"),
        "to a private name": redirect(f"http://private.hostile:{port}/"),
        "to localhost": redirect(f"//localhost:{port}/cat.png"),
        "to a file": redirect("file:///etc/passwd"),
        "to a data URL": redirect("data:image/png;base64,AAAA"),
        "to ftp": redirect("ftp://example.com/cat.png"),
        "to a URL with a password": redirect(f"http://me:secret@{HOST}:{port}/cat.png"),
        "redirect without location": respond(b"", status=302),
        "to an invalid URL": redirect("http://[::1"),
        "to itself": redirect("/to-itself"),
        "to loopback with status 308": redirect("http://127.0.0.1/cat.png", status=308),
    }


def _statuses() -> dict[str, Answer]:
    return {f"status {status}": respond(IMAGE, status=status) for status in (204, 206, 300, 401, 404, 500)}


def _bodies() -> dict[str, Answer]:
    return {
        "gzip bomb": respond(gzip.compress(bytes(1 << 24)), headers={"Content-Encoding": "gzip"}),
        "claims gigabytes": respond(IMAGE, headers={"Content-Length": str(1 << 40)}),
        "has gigabytes": _repeat(_OK + b"\r\n", bytes(1 << 16)),
        "has gigabytes in chunks": _repeat(
            _OK + b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + bytes(1 << 16) + b"\r\n"
        ),
        "shorter than its content length": respond(IMAGE, headers={"Content-Length": str(len(IMAGE) + 1)}),
    }


def _protocol() -> dict[str, Answer]:
    return {
        "negative length": _send(_OK + b"Content-Length: -1\r\n\r\n" + IMAGE),
        "two lengths": _send(_OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!"),
        "endless headers": _repeat(_OK, b"X-Header: useless\r\n" * 100),
        "a huge header": _send(_OK + b"X-Header: " + b"x" * (1 << 20) + b"\r\n\r\n"),
        "another protocol": _send(b"SSH-2.0-OpenSSH_9.2\r\n"),
        "empty response": _send(b""),
        "endless early hints": _repeat(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n" * 1000),
        "endless chunks of a byte": _repeat(_OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 1000),
        "broken chunks": _send(_OK + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n"),
    }


def _slow() -> dict[str, Answer]:
    return {
        "never answers": stall_after(b""),
        "headers byte by byte": _repeat(_OK + b"X-Header: ", b"x", pause_seconds=0.05),
        "body byte by byte": _repeat(_OK + b"Content-Length: 1000000\r\n\r\n", b"x", pause_seconds=0.05),
        "body stalls": stall_after(_OK + b"Content-Length: 1000000\r\n\r\n" + IMAGE),
        "endless 100 Continue": _repeat(b"", b"HTTP/1.1 100 Continue\r\n\r\n", pause_seconds=0.02),
    }


def _send(answer: bytes) -> Answer:
    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()

    return send


def _repeat(start: bytes, again: bytes, *, pause_seconds: float = 0) -> Answer:
    """Returns a handler that sends `start`, then `again` repeatedly until the client disconnects."""

    async def repeat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(start)
        with contextlib.suppress(ConnectionError):
            while not writer.is_closing():
                writer.write(again)
                await writer.drain()
                await asyncio.sleep(pause_seconds)

    return repeat
