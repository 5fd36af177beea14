"""What passes between a front end and a process that decodes video files for it: messages over a pair of streams.

A message is its length in four bytes, little-endian, and JSON; a file follows a job, and pixels follow a decoded clip.
"""

import struct
from typing import IO

import msgspec

from media.clip import VideoProcessing
from media.clip_options import ClipOptions
from media.errors import MediaErrorCode

_LENGTH = struct.Struct("<I")
_MAX_MESSAGE_BYTES = 1 << 20


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Make a clip of the file of `num_bytes` that follows."""

    processing: VideoProcessing
    options: ClipOptions
    num_bytes: int


class Decoded(msgspec.Struct, frozen=True, kw_only=True, tag="decoded"):
    """The clip whose pixels, of this shape, follow."""

    shape: tuple[int, int, int, int]
    """[frames, height, width, 3]"""
    frame_seconds: tuple[float, ...]
    fps: float | None


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """There is no clip to be made of the file."""

    code: MediaErrorCode
    message: str


class StreamEndedError(Exception):
    """The other side is gone, or sent what is no message."""


_job = msgspec.json.Decoder(Job)
_result: msgspec.json.Decoder[Decoded | Refused] = msgspec.json.Decoder(Decoded | Refused)


def write_message(stream: IO[bytes], message: Job | Decoded | Refused, payload: bytes | memoryview = b"") -> None:
    """Blocks until all is written. Raises OSError where the other side is gone."""
    encoded = msgspec.json.encode(message)
    stream.write(_LENGTH.pack(len(encoded)) + encoded)
    stream.write(payload)
    stream.flush()


def read_job(stream: IO[bytes]) -> tuple[Job, bytes] | None:
    """A job and its file; None once there are no more."""
    try:
        job = _job.decode(_read_message(stream))
    except StreamEndedError:
        return None
    return job, stream.read(job.num_bytes)


def read_result(stream: IO[bytes]) -> Decoded | Refused:
    """What became of a job. Raises StreamEndedError."""
    try:
        return _result.decode(_read_message(stream))
    except msgspec.DecodeError as error:
        raise StreamEndedError from error


def read_exactly(stream: IO[bytes], target: memoryview) -> None:
    """Fills the memory. Raises StreamEndedError."""
    while target:
        num_read = stream.readinto(target)  # pyright: ignore[reportAttributeAccessIssue] - a buffered reader has it
        if not num_read:
            raise StreamEndedError
        target = target[num_read:]


def _read_message(stream: IO[bytes]) -> bytearray:
    length = bytearray(_LENGTH.size)
    read_exactly(stream, memoryview(length))
    (num_bytes,) = _LENGTH.unpack(length)
    if num_bytes > _MAX_MESSAGE_BYTES:
        raise StreamEndedError
    message = bytearray(num_bytes)
    read_exactly(stream, memoryview(message))
    return message
