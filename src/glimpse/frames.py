"""Messages between processes: four bytes of length, little-endian, then a message in msgpack. Raw bytes may follow it.

`BlockingChannel` and `AsyncChannel` exchange messages over a socket. A reader takes no byte beyond its message.
"""

import asyncio
import contextlib
import socket
import struct
from typing import IO, Any, Generic, TypeVar

import msgspec

MAX_MESSAGE_BYTES = 256 << 20
"""The longest message, unless a connection has another limit. A prompt full of images takes a tenth of it."""

_LENGTH = struct.Struct("<I")
_SLICE_BYTES = 1 << 20
"""Written at a time. Between two slices of a long message the event loop serves others."""
_READ_AHEAD_BYTES = 1 << 20

_encoder = msgspec.msgpack.Encoder()

_Sent = TypeVar("_Sent")
_Received = TypeVar("_Received")
_Source = IO[bytes] | socket.socket
_AsyncSource = asyncio.StreamReader | socket.socket


class MessageTooLargeError(Exception):
    """The message is longer than the limit and was not sent."""


class TransportError(ValueError):
    """The other end sent an invalid message. Nothing after it can be read."""


class Frames(Generic[_Received]):
    """Messages of some types, as they are read. At the end of the source, also within a message, there is None."""

    def __init__(self, message_type: Any, *, max_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self.max_bytes = max_bytes
        self._decoder: msgspec.msgpack.Decoder[_Received] = msgspec.msgpack.Decoder(message_type)

    def read(self, source: _Source) -> _Received | None:
        """Blocks until a message arrives; bytes in it are views. Raises TransportError, or OSError as `source` does."""
        length = read_exactly(source, _LENGTH.size)
        body = None if length is None else read_exactly(source, self._num_bytes(length))
        return None if body is None else self.decode(body)

    async def receive(self, source: _AsyncSource) -> _Received | None:
        """Waits for a message. Raises TransportError, or OSError as `source` does."""
        body = await self.receive_body(source)
        return None if body is None else self.decode(body)

    async def receive_body(self, source: _AsyncSource) -> bytes | None:
        """Waits for a message and returns it as it was encoded. Raises as `receive`."""
        length = await _receive_exactly(source, _LENGTH.size)
        return None if length is None else await _receive_exactly(source, self._num_bytes(length))

    def decode(self, body: bytes | bytearray) -> _Received:
        """Returns a message. Raises TransportError."""
        try:
            return self._decoder.decode(body)
        except msgspec.DecodeError as error:
            raise TransportError(f"the message does not follow the protocol: {error}") from error

    def _num_bytes(self, length: bytes | bytearray) -> int:
        (num_bytes,) = _LENGTH.unpack(length)
        if num_bytes > self.max_bytes:
            raise TransportError(f"message length: expected at most {self.max_bytes} bytes, got {num_bytes}")
        return num_bytes


class BlockingChannel(Generic[_Sent, _Received]):
    """An end of a socket. One thread may send while another one receives."""

    def __init__(self, connection: socket.socket, frames: Frames[_Received]) -> None:
        self._socket = connection
        self._frames = frames

    def send(self, message: _Sent) -> None:
        """Blocks until the kernel has taken the message.

        Raises:
            MessageTooLargeError: the message is too long; nothing was sent.
            OSError: the other end is gone.
        """
        self._socket.sendall(framed(message, max_bytes=self._frames.max_bytes))

    def receive(self) -> _Received | None:
        """Blocks until a message arrives. Returns None once the other end is gone. Raises TransportError."""
        with contextlib.suppress(OSError):  # it has exited with unread messages, or its host is out of reach
            return self._frames.read(self._socket)
        return None

    def shutdown(self) -> None:
        """Shuts the connection down at both ends, which also wakes a thread that waits in `receive`."""
        with contextlib.suppress(OSError):  # the other end is closed already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the socket. To be called by the receiving thread when it has finished."""
        self._socket.close()


class AsyncChannel(Generic[_Received]):
    """An end of a socket in an event loop. Create it with `connect`, in the running loop, and end it with `close`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frames: Frames[_Received]) -> None:
        self._reader = reader
        self._writer = writer
        self._frames = frames
        self._outbox: asyncio.Queue[bytes | bytearray] = asyncio.Queue()
        self._writing = asyncio.create_task(self._write())

    @classmethod
    async def connect(cls, connection: socket.socket, frames: Frames[_Received]) -> "AsyncChannel[_Received]":
        """Takes ownership of the socket. `frames` is what the other end sends."""
        return cls(*await asyncio.open_unix_connection(sock=connection, limit=_READ_AHEAD_BYTES), frames)

    def post(self, message: msgspec.Struct) -> None:
        """Queues a message. If the other end is gone, the message is lost: `receive` returns None then.

        Raises:
            MessageTooLargeError: the message is too long; nothing was queued.
        """
        self.post_body(encoded(message))

    def post_body(self, body: bytes | bytearray) -> None:
        """Queues a message that `encoded` returned, or that another channel received."""
        self._outbox.put_nowait(body)

    async def receive(self) -> _Received | None:
        """Waits for a message. Returns None once the other end is gone. Raises TransportError."""
        body = await self.receive_body()
        return None if body is None else self._frames.decode(body)

    async def receive_body(self) -> bytes | None:
        """Waits for a message and returns it as it was encoded. Returns None once the other end is gone.

        Raises:
            TransportError: the message is too long.
        """
        with contextlib.suppress(ConnectionError):
            return await self._frames.receive_body(self._reader)
        return None

    async def close(self) -> None:
        """Closes the socket. Queued messages are lost. May be called more than once."""
        self._writing.cancel()
        await asyncio.wait([self._writing])
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    async def _write(self) -> None:
        with contextlib.suppress(ConnectionError):  # `receive` returns None then
            while True:
                body = memoryview(await self._outbox.get())
                self._writer.write(_LENGTH.pack(len(body)) + body[:_SLICE_BYTES])
                await self._writer.drain()
                for start in range(_SLICE_BYTES, len(body), _SLICE_BYTES):
                    self._writer.write(body[start : start + _SLICE_BYTES])
                    await self._writer.drain()


def encoded(message: msgspec.Struct) -> bytes:
    """Returns a message in msgpack, without its length. Raises MessageTooLargeError."""
    body = _encoder.encode(message)
    _check_length(len(body), MAX_MESSAGE_BYTES)
    return body


def framed(message: Any, *, max_bytes: int = MAX_MESSAGE_BYTES) -> bytearray:
    """Returns a message with its length, as it is sent. Raises MessageTooLargeError."""
    frame = bytearray(_LENGTH.size)
    _encoder.encode_into(message, frame, _LENGTH.size)
    num_bytes = len(frame) - _LENGTH.size
    _check_length(num_bytes, max_bytes)
    _LENGTH.pack_into(frame, 0, num_bytes)
    return frame


def write_message(stream: IO[bytes], message: msgspec.Struct, *payloads: bytes | memoryview) -> None:
    """Writes a message and raw bytes after it; blocks. Raises OSError if the other end has closed the pipe."""
    for part in (framed(message), *payloads):
        stream.write(part)
    stream.flush()


def read_exactly(source: _Source, num_bytes: int) -> bytearray | None:
    """Reads `num_bytes`; blocks. Returns None if the source ends before."""
    data = bytearray(num_bytes)
    return data if fill(memoryview(data), source) else None


def fill(target: memoryview, source: _Source) -> bool:
    """Reads as many bytes as `target` has; blocks. Returns False if the source ends before."""
    read_into = source.recv_into if isinstance(source, socket.socket) else source.readinto  # pyright: ignore[reportAttributeAccessIssue] - a buffered reader has it
    while target:
        num_read = read_into(target)
        if not num_read:
            return False
        target = target[num_read:]
    return True


async def _receive_exactly(source: _AsyncSource, num_bytes: int) -> bytes | None:
    if isinstance(source, asyncio.StreamReader):
        with contextlib.suppress(asyncio.IncompleteReadError):
            return await source.readexactly(num_bytes)
        return None
    data, loop = b"", asyncio.get_running_loop()
    while len(data) < num_bytes:
        received = await loop.sock_recv(source, num_bytes - len(data))
        if not received:
            return None
        data += received
    return data


def _check_length(num_bytes: int, max_bytes: int) -> None:
    if num_bytes > max_bytes:
        raise MessageTooLargeError(f"{num_bytes} bytes; at most {max_bytes} can be sent")
