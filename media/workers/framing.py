"""Message framing over the pipes or sockets between the front end and its worker processes.

A message is its length as four little-endian bytes, then JSON. Raw bytes may follow; the JSON says how many.
"""

import asyncio
import struct
from typing import IO, TypeVar

import msgspec

MessageT = TypeVar("MessageT")

_LENGTH = struct.Struct("<I")
_MAX_MESSAGE_BYTES = 1 << 20


class StreamEndedError(Exception):
    """The other side has closed the stream or sent an invalid message."""


def write_message(stream: IO[bytes], message: msgspec.Struct, *payloads: bytes | memoryview) -> None:
    """Writes a message and its payloads; blocks. Raises OSError if the other side has closed the pipe."""
    stream.write(framed(message))
    for payload in payloads:
        stream.write(payload)
    stream.flush()


def read_message(stream: IO[bytes], decoder: msgspec.json.Decoder[MessageT]) -> MessageT:
    """Reads the next message without its payloads; blocks. Raises StreamEndedError."""
    length = bytearray(_LENGTH.size)
    read_exactly(stream, memoryview(length))
    message = bytearray(_message_bytes(length))
    read_exactly(stream, memoryview(message))
    return _decoded(decoder, message)


def read_exactly(stream: IO[bytes], target: memoryview) -> None:
    """Fills `target`; blocks. Raises StreamEndedError."""
    while target:
        num_read = stream.readinto(target)  # pyright: ignore[reportAttributeAccessIssue] - a buffered reader has it
        if not num_read:
            raise StreamEndedError
        target = target[num_read:]


async def receive_message(stream: asyncio.StreamReader, decoder: msgspec.json.Decoder[MessageT]) -> MessageT:
    """Waits for the next message without its payloads. Raises StreamEndedError."""
    length = await receive_exactly(stream, _LENGTH.size)
    return _decoded(decoder, await receive_exactly(stream, _message_bytes(length)))


async def receive_exactly(stream: asyncio.StreamReader, num_bytes: int) -> bytes:
    """Waits for that many bytes. Raises StreamEndedError."""
    try:
        return await stream.readexactly(num_bytes)
    except (asyncio.IncompleteReadError, OSError) as error:
        raise StreamEndedError from error


def framed(message: msgspec.Struct) -> bytes:
    """Returns a message as it is written, without payloads."""
    encoded = msgspec.json.encode(message)
    return _LENGTH.pack(len(encoded)) + encoded


def _message_bytes(length: bytes | bytearray) -> int:
    """Raises StreamEndedError."""
    (num_bytes,) = _LENGTH.unpack(length)
    if num_bytes > _MAX_MESSAGE_BYTES:
        raise StreamEndedError
    return num_bytes


def _decoded(decoder: msgspec.json.Decoder[MessageT], message: bytes | bytearray) -> MessageT:
    """Raises StreamEndedError."""
    try:
        return decoder.decode(message)
    except msgspec.DecodeError as error:
        raise StreamEndedError from error
