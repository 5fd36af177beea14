"""HTTP/2 by hand, for what no well-behaved client library does: floods, resets, half requests."""

import asyncio
import contextlib
import struct
from collections import Counter
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager

from tests.chaos.target import HOST

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_NAMES = {_DATA: "DATA", _HEADERS: "HEADERS", _RST_STREAM: "RST_STREAM", _GOAWAY: "GOAWAY"}
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_MAX_FRAME_BYTES = 16_384
_CANCEL = 8


class Connection:
    """A client's connection. It answers the peer's SETTINGS and PINGs and counts what else comes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._next_stream = 1
        self.received: Counter[str] = Counter()
        """Frames by kind."""

    def request(self, headers: Iterable[tuple[str, str]], body: bytes = b"", *, ends: bool = True) -> int:
        """Sends a request and returns its stream's id; with `ends` false, the server waits for the rest."""
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        block = b"".join(map(_literal, headers))
        self.send(_HEADERS, _END_HEADERS | (_END_STREAM if ends and not body else 0), stream, block)
        for start in range(0, len(body), _MAX_FRAME_BYTES):
            last = ends and start + _MAX_FRAME_BYTES >= len(body)
            self.send(_DATA, _END_STREAM if last else 0, stream, body[start : start + _MAX_FRAME_BYTES])
        return stream

    def reset(self, stream: int) -> None:
        self.send(_RST_STREAM, 0, stream, struct.pack(">I", _CANCEL))

    def ping(self) -> None:
        self.send(_PING, 0, 0, bytes(8))

    def settings(self) -> None:
        self.send(_SETTINGS, 0, 0, b"")

    def window_update(self, stream: int, increment: int) -> None:
        self.send(_WINDOW_UPDATE, 0, stream, struct.pack(">I", increment))

    def send(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        """Writes any frame."""
        header = struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream)
        self._writer.write(header + payload)

    async def drain(self) -> None:
        await self._writer.drain()

    async def read(self) -> None:
        """Reads until the peer closes the connection."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                header = await self._reader.readexactly(9)
                kind, flags = header[3], header[4]
                payload = await self._reader.readexactly(int.from_bytes(header[:3]))
                self.received[_NAMES.get(kind, "other")] += 1
                if kind in (_SETTINGS, _PING) and not flags & _ACK:
                    self.send(kind, _ACK, 0, payload if kind == _PING else b"")

    def abort(self) -> None:
        """Closes the connection at once, with whatever is open on it."""
        self._writer.transport.abort()


@asynccontextmanager
async def connect(port: int) -> AsyncGenerator[Connection]:
    """Opens a connection, reads from it meanwhile, and aborts it in the end."""
    reader, writer = await asyncio.open_connection(HOST, port)
    connection = Connection(reader, writer)
    writer.write(_PREFACE)
    connection.settings()
    reading = asyncio.create_task(connection.read())
    try:
        yield connection
    finally:
        connection.abort()
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading


def rest_headers(path: str, port: int, length: int | None = None) -> list[tuple[str, str]]:
    """The headers of a POST of JSON."""
    headers = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", f"{HOST}:{port}")]
    headers += [("content-type", "application/json")]
    return headers if length is None else [*headers, ("content-length", str(length))]


def grpc_headers(method: str, port: int) -> list[tuple[str, str]]:
    """The headers of a gRPC call."""
    headers = [(":method", "POST"), (":scheme", "http"), (":path", method), (":authority", f"{HOST}:{port}")]
    return [*headers, ("content-type", "application/grpc"), ("te", "trailers")]


def _literal(header: tuple[str, str]) -> bytes:
    """A header as RFC 7541 §6.2.2 has it: a literal that is not indexed, without Huffman coding."""
    name, value = (text.encode("latin-1") for text in header)
    return b"\0" + _length(len(name)) + name + _length(len(value)) + value


def _length(number: int) -> bytes:
    """An integer with a prefix of 7 bits, RFC 7541 §5.1."""
    if number < 127:
        return bytes((number,))
    encoded, number = bytearray((127,)), number - 127
    while number >= 128:
        encoded.append(number % 128 + 128)
        number //= 128
    return bytes((*encoded, number))
