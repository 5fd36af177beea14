"""A hand-written HTTP/2 client of a gRPC server: it sends single frames, and is silent where libraries reply."""

import socket
import struct
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
ACK = END_STREAM = 1
END_HEADERS = _INITIAL_WINDOW_SIZE = 4
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
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
        self._socket.sendall(_PREFACE)
        self.send(SETTINGS, struct.pack(">HI", _INITIAL_WINDOW_SIZE, window))

    def send(self, kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0, times: int = 1) -> None:
        head = _HEAD.pack(len(payload) >> 8, len(payload) & 255, kind, flags, stream)
        self._socket.sendall((head + payload) * times)

    def ping(self, times: int = 1) -> None:
        self.send(PING, bytes(8), times=times)

    def call(self, method: str, request: bytes, *, stream: int = 1, **headers: str) -> None:
        """Sends a unary request."""
        pseudo = {":method": "POST", ":scheme": "http", ":path": method, ":authority": "localhost"}
        fields = pseudo | {"content-type": "application/grpc", "te": "trailers"} | headers
        block = b"".join(b"\0" + _text(name.replace("_", "-")) + _text(value) for name, value in fields.items())
        self.send(HEADERS, block, flags=END_HEADERS, stream=stream)
        self.send(DATA, struct.pack(">BI", 0, len(request)) + request, flags=END_STREAM, stream=stream)

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


def _text(text: str) -> bytes:
    """A string literal of HPACK, for texts under 127 bytes."""
    encoded = text.encode()
    assert len(encoded) < 127
    return bytes([len(encoded)]) + encoded
