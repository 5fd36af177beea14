"""Messages over a pair of pipes, between a front end and a process that works for it.

A message is its length in four bytes, little-endian, and JSON; bytes may follow whose number it says.
"""

import struct
from typing import IO

import msgspec

_LENGTH = struct.Struct("<I")
_MAX_MESSAGE_BYTES = 1 << 20


class StreamEndedError(Exception):
    """The other side is gone, or sent what is no message."""


def write_message(stream: IO[bytes], message: msgspec.Struct, *payloads: bytes | memoryview) -> None:
    """Blocks until all is written. Raises OSError where the other side is gone."""
    encoded = msgspec.json.encode(message)
    stream.write(_LENGTH.pack(len(encoded)) + encoded)
    for payload in payloads:
        stream.write(payload)
    stream.flush()


def read_message(stream: IO[bytes]) -> bytearray:
    """The next one's JSON. Raises StreamEndedError."""
    length = bytearray(_LENGTH.size)
    read_exactly(stream, memoryview(length))
    (num_bytes,) = _LENGTH.unpack(length)
    if num_bytes > _MAX_MESSAGE_BYTES:
        raise StreamEndedError
    message = bytearray(num_bytes)
    read_exactly(stream, memoryview(message))
    return message


def read_exactly(stream: IO[bytes], target: memoryview) -> None:
    """Fills the memory. Raises StreamEndedError."""
    while target:
        num_read = stream.readinto(target)  # pyright: ignore[reportAttributeAccessIssue] - a buffered reader has it
        if not num_read:
            raise StreamEndedError
        target = target[num_read:]
