"""A media server of the tests' own, at an address that the stack may fetch from: files, a way away, and no answer."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOST = "127.0.0.2"
"""Loopback, and not the one that is refused."""


class MediaHost(ThreadingHTTPServer):
    """The server. `/slow` is not answered until it closes, `/away` leads to 127.0.0.1."""

    def __init__(self) -> None:
        super().__init__((HOST, 0), _Handler)
        self.files: dict[str, bytes] = {}
        """By path."""
        self.paths: list[str] = []
        """Those that were asked for."""
        self.closing = threading.Event()

    def url(self, path: str) -> str:
        return f"http://{HOST}:{self.server_port}{path}"

    def put(self, path: str, data: bytes) -> str:
        """Serves a file; returns its URL."""
        self.files[path] = data
        return self.url(path)


class _Handler(BaseHTTPRequestHandler):
    server: MediaHost  # pyright: ignore[reportIncompatibleVariableOverride] - only such a one makes them

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        if self.path == "/slow":
            self.server.closing.wait()
            return
        body = self.server.files.get(self.path)
        self.send_response(302 if self.path == "/away" else 404 if body is None else 200)
        self.send_header("Location", "http://127.0.0.1/cat.png")
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Says nothing."""


@contextmanager
def serving_media() -> Generator[MediaHost]:
    host = MediaHost()
    thread = threading.Thread(target=host.serve_forever)
    thread.start()
    try:
        yield host
    finally:
        host.closing.set()
        host.shutdown()
        thread.join()
        host.server_close()
