"""Message framing over the pipes between the front end and its worker processes.

A message is its length as four little-endian bytes, then JSON. Raw bytes may follow; the JSON says how many.
"""

import struct
from typing import IO, TypeVar

import msgspec

MessageT = TypeVar("MessageT")

_LENGTH = struct.Struct("<I")
_MAX_MESSAGE_BYTES = 1 << 20


class StreamEndedError(Exception):
    """The other side has closed the pipe or sent an invalid message."""


def write_message(stream: IO[bytes], message: msgspec.Struct, *payloads: bytes | memoryview) -> None:
    """Writes a message and its payloads; blocks. Raises OSError if the other side has closed the pipe."""
    encoded = msgspec.json.encode(message)
    stream.write(_LENGTH.pack(len(encoded)) + encoded)
    for payload in payloads:
        stream.write(payload)
    stream.flush()


def read_message(stream: IO[bytes], decoder: msgspec.json.Decoder[MessageT]) -> MessageT:
    """Reads the next message without its payloads; blocks. Raises StreamEndedError."""
    length = bytearray(_LENGTH.size)
    read_exactly(stream, memoryview(length))
    (num_bytes,) = _LENGTH.unpack(length)
    if num_bytes > _MAX_MESSAGE_BYTES:
        raise StreamEndedError
    message = bytearray(num_bytes)
    read_exactly(stream, memoryview(message))
    try:
        return decoder.decode(message)
    except msgspec.DecodeError as error:
        raise StreamEndedError from error


def read_exactly(stream: IO[bytes], target: memoryview) -> None:
    """Fills `target`; blocks. Raises StreamEndedError."""
    while target:
        num_read = stream.readinto(target)  # pyright: ignore[reportAttributeAccessIssue] - a buffered reader has it
        if not num_read:
            raise StreamEndedError
        target = target[num_read:]
