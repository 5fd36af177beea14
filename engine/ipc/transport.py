"""Messages over a Unix stream socket: a length in four bytes, little-endian, then one message in msgpack.

`Channel` is the engine's end and blocks; `AsyncChannel` is the front end's. Both know how a message becomes bytes and
when the other side is gone; neither knows what a message means, nor who started whom.
"""

import asyncio
import contextlib
import socket
import struct
from typing import TypeVar

import msgspec

from glimpse.engine.protocol import FromEngine, ToEngine

MAX_MESSAGE_BYTES = 256 << 20
"""The longest message. A prompt full of pictures takes a tenth of it."""

_LENGTH = struct.Struct("<I")
_SLICE_BYTES = 1 << 20
"""Written at once: the event loop serves others between two slices of a long message."""
_READ_AHEAD_BYTES = 1 << 20

_Message = TypeVar("_Message")

_encoder = msgspec.msgpack.Encoder()
_to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
_from_engine: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)


class MessageTooLargeError(Exception):
    """A message longer than `MAX_MESSAGE_BYTES`, which was not sent."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__(
            f"the message has {num_bytes} bytes; at most {MAX_MESSAGE_BYTES} are sent to the engine process"
        )


class TransportError(Exception):
    """The other side sent what is no message. Nothing after it can be read."""


class Channel:
    """The engine's end of the socket. One thread may send while another receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def send(self, message: FromEngine) -> None:
        """Blocks until the kernel has taken the message.

        Raises:
            MessageTooLargeError: nothing was sent.
            ConnectionError: the front end is gone.
        """
        self._socket.sendall(_frame(message))

    def receive(self) -> ToEngine | None:
        """Blocks until a message is there; None once the front end is gone. Pixels are views into what was received.

        Raises:
            TransportError: what arrived is no message.
        """
        length = self._read(_LENGTH.size)
        if length is None:
            return None
        body = self._read(_num_bytes(length))
        return None if body is None else _decoded(_to_engine, body)

    def _read(self, num_bytes: int) -> bytearray | None:
        """Exactly so many bytes, or None if the stream ends before."""
        data = bytearray(num_bytes)
        rest = memoryview(data)
        while rest:
            try:
                num_read = self._socket.recv_into(rest)
            except ConnectionError:  # the other side ended with something of ours unread
                return None
            if not num_read:
                return None
            rest = rest[num_read:]
        return data


class AsyncChannel:
    """The front end's end of the socket. Made by `connect`, in a running event loop; ended by `close`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._outbox: asyncio.Queue[bytearray] = asyncio.Queue()
        self._writing = asyncio.create_task(self._write())

    @classmethod
    async def connect(cls, connection: socket.socket) -> "AsyncChannel":
        """Takes the socket over."""
        return cls(*await asyncio.open_unix_connection(sock=connection, limit=_READ_AHEAD_BYTES))

    def post(self, message: ToEngine) -> None:
        """Queues a message behind those posted before. To an engine that is gone it goes nowhere: `receive` tells.

        Raises:
            MessageTooLargeError: nothing was queued.
        """
        self._outbox.put_nowait(_frame(message))

    async def receive(self) -> FromEngine | None:
        """Waits for a message; None once the engine is gone.

        Raises:
            TransportError: what arrived is no message.
        """
        try:
            length = await self._reader.readexactly(_LENGTH.size)
            body = await self._reader.readexactly(_num_bytes(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return _decoded(_from_engine, body)

    async def close(self) -> None:
        """Closes the socket, whatever is still queued. May be called more than once."""
        self._writing.cancel()
        await asyncio.wait([self._writing])
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    async def _write(self) -> None:
        with contextlib.suppress(ConnectionError):  # `receive` tells of it
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
        raise TransportError(f"a message of {num_bytes} bytes is announced; at most {MAX_MESSAGE_BYTES} are read")
    return num_bytes


def _decoded(decoder: msgspec.msgpack.Decoder[_Message], body: bytes | bytearray) -> _Message:
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as error:
        raise TransportError(f"the other side sent no message of the protocol: {error}") from error
