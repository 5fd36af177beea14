"""A media server at an address that the stack may fetch from: files, a redirect, and a path that never answers."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOST = "127.0.0.2"
"""A loopback address other than 127.0.0.1, which the server refuses."""


class MediaHost(ThreadingHTTPServer):
    """The server. `/slow` gets no response until the server closes; `/away` redirects to 127.0.0.1."""

    def __init__(self) -> None:
        super().__init__((HOST, 0), _Handler)
        self.files: dict[str, bytes] = {}
        """By path."""
        self.paths: list[str] = []
        """The requested paths."""
        self.closing = threading.Event()

    def url(self, path: str) -> str:
        return f"http://{HOST}:{self.server_port}{path}"

    def put(self, path: str, data: bytes) -> str:
        """Serves a file; returns its URL."""
        self.files[path] = data
        return self.url(path)


class _Handler(BaseHTTPRequestHandler):
    server: MediaHost  # pyright: ignore[reportIncompatibleVariableOverride] - MediaHost creates its handlers

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
        """Logs nothing."""


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
