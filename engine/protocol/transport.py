"""Messages over a Unix stream socket: four bytes of length, little-endian, then one message in msgpack.

`Channel` is the engine's end and blocks. `AsyncChannel` is that of a front end.
"""

import asyncio
import contextlib
import socket
import struct
from typing import Generic, TypeVar

import msgspec

from glimpse.engine.protocol.messages import FromEngine, ToEngine

MAX_MESSAGE_BYTES = 256 << 20
"""The longest message. A prompt full of images takes a tenth of it."""

_LENGTH = struct.Struct("<I")
_SLICE_BYTES = 1 << 20
"""Written at a time. Between two slices of a long message the event loop serves others."""
_READ_AHEAD_BYTES = 1 << 20

_Message = TypeVar("_Message")

FROM_ENGINE: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)
"""Of what an engine sends."""

_encoder = msgspec.msgpack.Encoder()
_to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)


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
        return None if body is None else decoded(_to_engine, body)

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


class AsyncChannel(Generic[_Message]):
    """An end of a socket in an event loop. Create it with `connect`, in the running loop, and end it with `close`."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, decoder: msgspec.msgpack.Decoder[_Message]
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = decoder
        self._outbox: asyncio.Queue[bytes | bytearray] = asyncio.Queue()
        self._writing = asyncio.create_task(self._write())

    @classmethod
    async def connect(
        cls, connection: socket.socket, decoder: msgspec.msgpack.Decoder[_Message]
    ) -> "AsyncChannel[_Message]":
        """Takes ownership of the socket. `decoder` is of what the other end sends."""
        return cls(*await asyncio.open_unix_connection(sock=connection, limit=_READ_AHEAD_BYTES), decoder)

    def post(self, message: msgspec.Struct) -> None:
        """Queues a message. If the other end is gone, the message is lost: `receive` returns None then.

        Raises:
            MessageTooLargeError: the message is too long; nothing was queued.
        """
        self.post_body(encoded(message))

    def post_body(self, body: bytes | bytearray) -> None:
        """Queues a message that `encoded` returned, or that another channel received."""
        self._outbox.put_nowait(body)

    async def receive(self) -> _Message | None:
        """Waits for a message. Returns None once the other end is gone.

        Raises:
            TransportError: the message is invalid.
        """
        body = await self.receive_body()
        return None if body is None else decoded(self._decoder, body)

    async def receive_body(self) -> bytes | None:
        """Waits for a message and returns it as it was encoded. Returns None once the other end is gone.

        Raises:
            TransportError: the message is too long.
        """
        try:
            length = await self._reader.readexactly(_LENGTH.size)
            return await self._reader.readexactly(_num_bytes(length))
        except (asyncio.IncompleteReadError, ConnectionError):
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
    """Returns a message in msgpack. Raises MessageTooLargeError."""
    body = _encoder.encode(message)
    if len(body) > MAX_MESSAGE_BYTES:
        raise MessageTooLargeError(len(body))
    return body


def _frame(message: FromEngine) -> bytearray:
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


def decoded(decoder: msgspec.msgpack.Decoder[_Message], body: bytes | bytearray) -> _Message:
    """Returns a message. Raises TransportError."""
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as error:
        raise TransportError(f"the message does not follow the protocol: {error}") from error
