"""A hand-written HTTP/2 client of a gRPC server: it sends single frames, and is silent where libraries reply."""

import socket
import struct
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests import http2

_HEAD = struct.Struct(">HBBBI")


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A frame that the server sent."""

    kind: int
    flags: int
    stream: int
    payload: bytes


class Connection:
    """One connection; streams are numbered by the caller, with odd numbers."""

    def __init__(self, connection: socket.socket, window: int = 65_535) -> None:
        self._socket = connection
        self._socket.sendall(http2.PREFACE)
        self.send(http2.SETTINGS, http2.window_setting(window))

    def send(self, kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0, times: int = 1) -> None:
        self._socket.sendall(http2.frame(kind, flags, stream, payload) * times)

    def ping(self, times: int = 1) -> None:
        self.send(http2.PING, bytes(8), times=times)

    def call(self, method: str, request: bytes, *, stream: int = 1, **headers: str) -> None:
        """Sends a unary request."""
        own = ((name.replace("_", "-"), value) for name, value in headers.items())
        block = http2.header_block([*http2.grpc_headers(method, self._socket.getpeername()[1]), *own])
        self.send(http2.HEADERS, block, flags=http2.END_HEADERS, stream=stream)
        message = struct.pack(">BI", 0, len(request)) + request
        self.send(http2.DATA, message, flags=http2.END_STREAM, stream=stream)

    def frames(self) -> Iterator[Frame]:
        """Yields frames until the server closes the connection. Replies to none of them."""
        while len(head := self._read(_HEAD.size)) == _HEAD.size:
            high, low, kind, flags, stream = _HEAD.unpack(head)
            yield Frame(kind=kind, flags=flags, stream=stream, payload=self._read(high << 8 | low))

    def until(self, kind: int, *, flags: int = 0, times: int = 1) -> Frame | None:
        """Returns the last of so many frames of a kind with these flags, or None if the server closes before."""
        for frame in self.frames():
            if frame.kind == kind and frame.flags & flags == flags:
                times -= 1
                if not times:
                    return frame
        return None

    def _read(self, num_bytes: int) -> bytes:
        data = b""
        while len(data) < num_bytes and (more := self._socket.recv(num_bytes - len(data))):
            data += more
        return data


@contextmanager
def connected(port: int, *, window: int = 65_535) -> Generator[Connection]:
    """Connects. `window`: bytes of a response that the server may send until it is told that it may send more."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        yield Connection(connection, window)
