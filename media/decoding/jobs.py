"""What passes between a front end and a process that decodes files for it.

A job is followed by its files, one after another, and a decoded medium by its elements.
"""

from typing import IO

import msgspec

from glimpse.media.decoding.framing import StreamEndedError, read_message, write_message
from glimpse.media.errors import MediaErrorCode
from glimpse.media.processing.audio import AudioProcessing
from glimpse.media.processing.image import ImageProcessing
from glimpse.media.processing.video import VideoProcessing
from glimpse.media.processing.video_options import VideoOptions


class ImageJob(msgspec.Struct, frozen=True, kw_only=True, tag="image"):
    """Make a picture of a file: uint8 [height, width, 3]."""

    processing: ImageProcessing
    """With the request's bounds."""
    max_decoded_pixels: int


class VideoJob(msgspec.Struct, frozen=True, kw_only=True, tag="clip"):
    """Make a clip of a video file: uint8 [frames, height, width, 3]."""

    processing: VideoProcessing
    options: VideoOptions


class FramesJob(msgspec.Struct, frozen=True, kw_only=True, tag="frames"):
    """Make a clip of pictures' files: uint8 [frames, height, width, 3]."""

    processing: VideoProcessing
    options: VideoOptions
    frame_indices: tuple[int, ...]
    """The files' places among all frames."""
    max_decoded_pixels: int
    """Of each."""


class AudioJob(msgspec.Struct, frozen=True, kw_only=True, tag="sound"):
    """Find what is heard of a sound file: float32 [samples]."""

    processing: AudioProcessing


Job = ImageJob | VideoJob | FramesJob | AudioJob


class Decoded(msgspec.Struct, frozen=True, kw_only=True, tag="decoded"):
    """The medium whose elements follow, in the job's form."""

    shape: tuple[int, ...]
    frame_seconds: tuple[float, ...] = ()
    """Of a clip, as in `glimpse.media.processing.video.Video`."""
    fps: float | None = None
    """The same."""


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """There is nothing to be made of the files."""

    code: MediaErrorCode
    message: str


class _Order(msgspec.Struct, frozen=True, kw_only=True):
    job: Job
    file_sizes: tuple[int, ...]
    """In bytes."""


_order = msgspec.json.Decoder(_Order)
_result: msgspec.json.Decoder[Decoded | Refused] = msgspec.json.Decoder(Decoded | Refused)


def write_job(stream: IO[bytes], job: Job, files: tuple[bytes, ...]) -> None:
    """Blocks until all is written. Raises OSError where the other side is gone."""
    write_message(stream, _Order(job=job, file_sizes=tuple(map(len, files))), *files)


def read_job(stream: IO[bytes]) -> tuple[Job, list[bytes]] | None:
    """A job and its files; None once there are no more."""
    try:
        order = _order.decode(read_message(stream))
    except StreamEndedError:
        return None
    return order.job, [stream.read(size) for size in order.file_sizes]


def write_result(stream: IO[bytes], result: Decoded | Refused, elements: bytes | memoryview = b"") -> None:
    """Blocks until all is written. Raises OSError where the other side is gone."""
    write_message(stream, result, elements)


def read_result(stream: IO[bytes]) -> Decoded | Refused:
    """What became of a job. Raises StreamEndedError."""
    try:
        return _result.decode(read_message(stream))
    except msgspec.DecodeError as error:
        raise StreamEndedError from error
