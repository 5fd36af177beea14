"""HTTP/2 by hand, for what no well-behaved client library does: floods, resets, half requests, shut windows."""

import asyncio
import contextlib
import struct
from collections import Counter
from collections.abc import AsyncGenerator, Iterable

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
_NAMES = {DATA: "DATA", HEADERS: "HEADERS", RST_STREAM: "RST_STREAM", GOAWAY: "GOAWAY"}
ACK = END_STREAM = 1
END_HEADERS = _INITIAL_WINDOW_SIZE = 4
REFUSED_STREAM, _CANCEL = 7, 8
_MAX_FRAME_BYTES = 16_384

Headers = Iterable[tuple[str, str]]


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def window_setting(num_bytes: int) -> bytes:
    """The payload of SETTINGS: how much of a response the server may send until it is told that it may send more."""
    return struct.pack(">HI", _INITIAL_WINDOW_SIZE, num_bytes)


def header_block(headers: Headers) -> bytes:
    """Headers as RFC 7541 §6.2.2 has them: literals that are not indexed, without Huffman coding."""
    texts = (text.encode("latin-1") for header in headers for text in header)
    strings = [_length(len(text)) + text for text in texts]
    return b"".join(b"\0" + name + value for name, value in zip(strings[::2], strings[1::2], strict=True))


def _length(number: int) -> bytes:
    """An integer with a prefix of 7 bits, RFC 7541 §5.1."""
    if number < 127:
        return bytes((number,))
    encoded, number = bytearray((127,)), number - 127
    while number >= 128:
        encoded.append(number % 128 + 128)
        number //= 128
    return bytes((*encoded, number))


class Connection:
    """A client's connection. It answers the peer's SETTINGS and PINGs and counts what else comes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._next_stream = 1
        self._unsent = bytearray()
        self._changed = asyncio.Event()
        self._num_pongs = 0
        self.received: Counter[str] = Counter()
        """Frames by kind."""
        self.resets: dict[int, int] = {}
        """Streams that the server reset, and its error codes."""
        self.finished: set[int] = set()
        """Streams whose responses are complete."""
        self.ended = asyncio.Event()
        """The server closed the connection."""

    def request(self, headers: Headers, body: bytes = b"", *, ends: bool = True) -> int:
        """Sends a request and returns its stream's id; with `ends` false, the server waits for the rest."""
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        flags = END_HEADERS | (END_STREAM if ends and not body else 0)
        self.send(HEADERS, flags, stream, header_block(headers))
        for start in range(0, len(body), _MAX_FRAME_BYTES):
            last = ends and start + _MAX_FRAME_BYTES >= len(body)
            self.send(DATA, END_STREAM if last else 0, stream, body[start : start + _MAX_FRAME_BYTES])
        return stream

    def reset(self, stream: int) -> None:
        self.send(RST_STREAM, 0, stream, struct.pack(">I", _CANCEL))

    def ping(self) -> None:
        self.send(PING, 0, 0, bytes(8))

    def settings(self, payload: bytes = b"") -> None:
        self.send(SETTINGS, 0, 0, payload)

    def window_update(self, stream: int, increment: int) -> None:
        self.send(WINDOW_UPDATE, 0, stream, struct.pack(">I", increment))

    def send(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        """Writes any frame. Those of one turn of the event loop leave together."""
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent += frame(kind, flags, stream, payload)

    def _flush(self) -> None:
        if self._unsent:
            self._writer.write(self._unsent)
            self._unsent = bytearray()

    async def drain(self) -> None:
        self._flush()
        await self._writer.drain()

    async def settle(self) -> None:
        """Waits until the server has read everything that was sent, as its answer to a ping says, or has closed."""
        expected = self._num_pongs + 1
        self.ping()
        while self._num_pongs < expected and not self.ended.is_set():
            self._changed.clear()
            await self._changed.wait()

    async def read(self) -> None:
        """Reads until the peer closes the connection."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                header = await self._reader.readexactly(9)
                kind, flags, stream = struct.unpack(">BBI", header[3:])
                self._note(kind, flags, stream, await self._reader.readexactly(int.from_bytes(header[:3])))
        self.ended.set()
        self._changed.set()

    def _note(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        self.received[_NAMES.get(kind, "other")] += 1
        if kind in (DATA, HEADERS) and flags & END_STREAM:
            self.finished.add(stream)
        elif kind == RST_STREAM:
            (self.resets[stream],) = struct.unpack(">I", payload)
        elif kind == PING and flags & ACK:
            self._num_pongs += 1
            self._changed.set()
        elif kind in (SETTINGS, PING) and not flags & ACK:
            self.send(kind, ACK, 0, payload if kind == PING else b"")

    async def close(self) -> None:
        """Closes the connection, with its streams."""
        self._flush()
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    def abort(self) -> None:
        """Closes the connection at once, with whatever is open on it."""
        self._writer.transport.abort()


@contextlib.asynccontextmanager
async def connect(port: int, *, window: int | None = None) -> AsyncGenerator[Connection]:
    """Opens a connection without TLS, reads from it meanwhile, and aborts it in the end.

    Args:
        window: see `window_setting`. Default: HTTP/2's, 65,535 bytes.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    connection = Connection(reader, writer)
    writer.write(PREFACE)
    connection.settings(b"" if window is None else window_setting(window))
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
    headers = [*_pseudo_headers(path, port), ("content-type", "application/json")]
    return headers if length is None else [*headers, ("content-length", str(length))]


def grpc_headers(method: str, port: int) -> list[tuple[str, str]]:
    """The headers of a gRPC call."""
    return [*_pseudo_headers(method, port), ("content-type", "application/grpc"), ("te", "trailers")]


def _pseudo_headers(path: str, port: int) -> Headers:
    return (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", f"127.0.0.1:{port}")
