"""A stand-in for the Hugging Face hub that serves folders as models, and remembers what was asked of it."""

import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

REVISION = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    def __init__(self, models: Mapping[str, Path]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.models = models
        self.sent_bytes = Counter[str]()
        """How much of each file was sent."""
        self.breaks_after: int | None = None
        """After how many bytes of a file the connection is lost."""
        self.is_down = False
        self.num_refused = 0
        """Requests that came while it was down."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def serve_hub(models: Mapping[str, Path]) -> Generator[Hub]:
    """Serves the files of folders as those of models, by their ids."""
    with Hub(models) as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        yield hub
        hub.shutdown()


class _Handler(BaseHTTPRequestHandler):
    server: Hub  # pyright: ignore[reportIncompatibleVariableOverride] - this is what constructs it

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, format: str, *_: object) -> None:  # noqa: A002 - the library's name
        """Logs nothing."""

    def _answer(self) -> None:
        if self.server.is_down:
            self.server.num_refused += 1
            self._send(503)
            return
        named = re.match(r"/(?:api/models/)?([\w.-]+/[\w.-]+)", self.path)
        if named is None or (model := named[1]) not in self.server.models:
            self._send(404)
            return
        folder = self.server.models[model]
        files = sorted(folder.iterdir())
        if match := re.fullmatch(rf"/{model}/resolve/[^/]+/(.+)", self.path):
            self._answer_file(folder / match[1])
        elif self.path.startswith(f"/api/models/{model}/tree/"):
            self._send(200, json.dumps([_entry(file) for file in files]).encode())
        elif self.path.startswith(f"/api/models/{model}"):
            siblings = [_sibling(file) for file in files]
            info = {"id": model, "sha": REVISION, "siblings": siblings, "private": False, "tags": []}
            self._send(200, json.dumps(info).encode())
        else:
            self._send(404)

    def _answer_file(self, file: Path) -> None:
        if not file.is_file():
            self._send(404)
            return
        content, status = file.read_bytes(), 200
        tag = hashlib.sha256(content).hexdigest()
        if match := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", "")):
            content, status = content[int(match[1]) : int(match[2] or len(content)) + 1], 206
        self._send(status, content, tag, sent=self.server.breaks_after if file.suffix == ".safetensors" else None)
        if self.command == "GET":
            self.server.sent_bytes[file.name] += len(content[: self.server.breaks_after])

    def _send(self, status: int, content: bytes = b"", tag: str = "", sent: int | None = None) -> None:
        self.send_response(status)
        self.send_header("X-Repo-Commit", REVISION)
        self.send_header("Content-Length", str(len(content)))
        self.send_header(*(("ETag", f'"{tag}"') if tag else ("X-Error-Code", "EntryNotFound")))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[:sent])


def _entry(file: Path) -> dict[str, object]:
    """A file as the hub lists it page by page."""
    content = file.read_bytes()
    oid = hashlib.sha1(content, usedforsecurity=False).hexdigest()
    return {"type": "file", "path": file.name, "size": len(content), "oid": oid, **_large(file, "oid")}


def _sibling(file: Path) -> dict[str, object]:
    """A file as the hub tells it with the model."""
    return {"rfilename": file.name, "size": file.stat().st_size, **_large(file, "sha256")}


def _large(file: Path, digest: str) -> dict[str, object]:
    if file.suffix != ".safetensors":
        return {}
    content = file.read_bytes()
    return {"lfs": {digest: hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}}
