"""A client of raw HTTP/2 frames, for what well-behaved clients do not send."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field

from glimpse.gateway.address import Address

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _CONTINUATION = 0, 1, 3, 4, 6, 7, 9
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
REFUSED_STREAM, _CANCEL = 7, 8
_INITIAL_WINDOW_SIZE = 4


@dataclass(slots=True)
class Http2Connection:
    """A connection that sends what it is told and counts what comes back."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    host: str
    num_streams: int = 0
    resets: dict[int, int] = field(default_factory=dict[int, int])
    """Streams that the server reset, and its error codes."""
    finished: set[int] = field(default_factory=set[int])
    """Streams whose responses are complete."""
    went_away: bool = False
    """The server sent GOAWAY."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """The server closed the connection."""
    num_pongs: int = 0
    """Answers to pings."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def request(self, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> int:
        """Begins a POST request; without a body its stream stays open. Returns the stream's id."""
        stream = 2 * self.num_streams + 1
        self.num_streams += 1
        pseudo = {":method": "POST", ":scheme": "http", ":path": path, ":authority": self.host}
        block = b"".join(_literal(*pair) for pair in {**pseudo, **(headers or {})}.items())
        self._send(_HEADERS, _END_HEADERS, stream, block)
        if body is not None:
            self._send(_DATA, _END_STREAM, stream, body)
        return stream

    def begin_headers(self) -> None:
        """Begins the headers of a request, without an end."""
        self._send(_HEADERS, 0, 1, _literal(":method", "POST"))

    def continue_headers(self, headers: Mapping[str, str]) -> None:
        """Goes on with the headers."""
        self._send(_CONTINUATION, 0, 1, b"".join(_literal(*pair) for pair in headers.items()))

    def send_data(self, stream: int, body: bytes, *, frame_bytes: int) -> None:
        """Sends the body of a request in frames of a size, and ends it."""
        for start in range(0, len(body), frame_bytes):
            self._send(_DATA, 0, stream, body[start : start + frame_bytes])
        self._send(_DATA, _END_STREAM, stream, b"")

    def reset(self, stream: int) -> None:
        """Cancels a request."""
        self._send(_RESET, 0, stream, struct.pack(">I", _CANCEL))

    async def settle(self) -> None:
        """Waits until the server has read everything that was sent, as its answer to a ping says, or has closed."""
        expected = self.num_pongs + 1
        self._send(_PING, 0, 0, bytes(8))
        async with asyncio.timeout(30):
            while self.num_pongs < expected and not self.ended.is_set():
                self._changed.clear()
                await self._changed.wait()

    def _send(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        self.writer.write(struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload)

    async def read(self) -> None:
        """Reads frames until the server closes the connection."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                header = await self.reader.readexactly(9)
                length, kind, flags, stream = struct.unpack(">I", b"\0" + header[:3]) + struct.unpack(
                    ">BBI", header[3:]
                )
                self._note(kind, flags, stream, await self.reader.readexactly(length))
        self.ended.set()
        self._changed.set()

    def _note(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
            self.finished.add(stream)
        if kind == _RESET:
            (self.resets[stream],) = struct.unpack(">I", payload)
        elif kind == _GOAWAY:
            self.went_away = True
        elif kind == _SETTINGS and not flags & _ACK:
            self._send(_SETTINGS, _ACK, 0, b"")
        elif kind == _PING and flags & _ACK:
            self.num_pongs += 1
            self._changed.set()


@contextlib.asynccontextmanager
async def http2(address: Address, *, window: int | None = None) -> AsyncGenerator[Http2Connection]:
    """Connects without TLS; closes the connection, with its streams, at the end.

    Args:
        address: of the server.
        window: bytes of a response that the server may send, which never grow. Default: HTTP/2's, 65,535.
    """
    reader, writer = await asyncio.open_connection(address.host, address.port)
    connection = Http2Connection(reader, writer, str(address))
    writer.write(_PREFACE)
    settings = b"" if window is None else struct.pack(">HI", _INITIAL_WINDOW_SIZE, window)
    writer.write(struct.pack(">I", len(settings))[1:] + struct.pack(">BBI", _SETTINGS, 0, 0) + settings)
    reading = asyncio.create_task(connection.read())
    try:
        yield connection
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        await reading


def _literal(name: str, value: str) -> bytes:
    """Returns a header as HPACK: a literal that enters no table, without Huffman's code."""
    return b"\0" + _string(name) + _string(value)


def _string(text: str) -> bytes:
    data = text.encode("latin-1")
    assert len(data) < 127, "longer strings have a longer length"
    return bytes([len(data)]) + data
