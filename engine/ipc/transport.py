"""Messages over a Unix stream socket: four bytes of length, little-endian, then one message in msgpack.

`Channel` is the engine's end and blocks. `AsyncChannel` is the front end's.
"""

import asyncio
import contextlib
import socket
import struct
from typing import TypeVar

import msgspec

from glimpse.engine.protocol import FromEngine, ToEngine

MAX_MESSAGE_BYTES = 256 << 20
"""The longest message. A prompt full of images takes a tenth of it."""

_LENGTH = struct.Struct("<I")
_SLICE_BYTES = 1 << 20
"""Written at a time. Between two slices of a long message the event loop serves others."""
_READ_AHEAD_BYTES = 1 << 20

_Message = TypeVar("_Message")

_encoder = msgspec.msgpack.Encoder()
_to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
_from_engine: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)


class MessageTooLargeError(Exception):
    """The message is longer than `MAX_MESSAGE_BYTES` and was not sent."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__(
            f"the request has {num_bytes} bytes; at most {MAX_MESSAGE_BYTES} can be sent to the engine process"
        )


class TransportError(Exception):
    """The other side sent an invalid message. Nothing after it can be read."""


class Channel:
    """The engine's end of the socket. One thread may send while another one receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def send(self, message: FromEngine) -> None:
        """Blocks until the kernel has taken the message.

        Raises:
            MessageTooLargeError: the message is too long; nothing was sent.
            ConnectionError: the front end is gone.
        """
        self._socket.sendall(_frame(message))

    def receive(self) -> ToEngine | None:
        """Blocks until a message arrives. Returns None once the front end is gone. Pixels are views into the message.

        Raises:
            TransportError: the message is invalid.
        """
        length = self._read(_LENGTH.size)
        if length is None:
            return None
        body = self._read(_num_bytes(length))
        return None if body is None else _decoded(_to_engine, body)

    def _read(self, num_bytes: int) -> bytearray | None:
        """Reads exactly `num_bytes`. Returns None if the stream ends before."""
        data = bytearray(num_bytes)
        rest = memoryview(data)
        while rest:
            try:
                num_read = self._socket.recv_into(rest)
            except ConnectionError:  # the other side has exited with unread messages
                return None
            if not num_read:
                return None
            rest = rest[num_read:]
        return data


class AsyncChannel:
    """The front end's end of the socket. Create it with `connect`, in a running event loop, and end it with `close`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._outbox: asyncio.Queue[bytearray] = asyncio.Queue()
        self._writing = asyncio.create_task(self._write())

    @classmethod
    async def connect(cls, connection: socket.socket) -> "AsyncChannel":
        """Takes ownership of the socket."""
        return cls(*await asyncio.open_unix_connection(sock=connection, limit=_READ_AHEAD_BYTES))

    def post(self, message: ToEngine) -> None:
        """Queues a message. If the engine is gone, the message is lost: `receive` returns None then.

        Raises:
            MessageTooLargeError: the message is too long; nothing was queued.
        """
        self._outbox.put_nowait(_frame(message))

    async def receive(self) -> FromEngine | None:
        """Waits for a message. Returns None once the engine is gone.

        Raises:
            TransportError: the message is invalid.
        """
        try:
            length = await self._reader.readexactly(_LENGTH.size)
            body = await self._reader.readexactly(_num_bytes(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return _decoded(_from_engine, body)

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
                frame = memoryview(await self._outbox.get())
                for start in range(0, len(frame), _SLICE_BYTES):
                    self._writer.write(frame[start : start + _SLICE_BYTES])
                    await self._writer.drain()


def _frame(message: ToEngine | FromEngine) -> bytearray:
    frame = bytearray(_LENGTH.size)
    _encoder.encode_into(message, frame, _LENGTH.size)
    num_bytes = len(frame) - _LENGTH.size
    if num_bytes > MAX_MESSAGE_BYTES:
        raise MessageTooLargeError(num_bytes)
    _LENGTH.pack_into(frame, 0, num_bytes)
    return frame


def _num_bytes(length: bytes | bytearray) -> int:
    (num_bytes,) = _LENGTH.unpack(length)
    if num_bytes > MAX_MESSAGE_BYTES:
        raise TransportError(f"message length: expected at most {MAX_MESSAGE_BYTES} bytes, got {num_bytes}")
    return num_bytes


def _decoded(decoder: msgspec.msgpack.Decoder[_Message], body: bytes | bytearray) -> _Message:
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as error:
        raise TransportError(f"the message does not follow the protocol: {error}") from error
