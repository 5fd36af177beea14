"""Messages between the front end and a decoding worker process.

A job is followed by the bytes of its files, and a result by the elements of the decoded media.
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
    """Decodes an image file to uint8 [height, width, 3]."""

    processing: ImageProcessing
    """Parameters with the request's bounds."""
    max_decoded_pixels: int


class VideoJob(msgspec.Struct, frozen=True, kw_only=True, tag="video"):
    """Decodes a video file to uint8 [frames, height, width, 3]."""

    processing: VideoProcessing
    options: VideoOptions


class FramesJob(msgspec.Struct, frozen=True, kw_only=True, tag="frames"):
    """Decodes image files that are a video's frames to uint8 [frames, height, width, 3]."""

    processing: VideoProcessing
    options: VideoOptions
    frame_indices: tuple[int, ...]
    """Index of each file among all frames."""
    max_decoded_pixels: int
    """Limit on each image."""


class AudioJob(msgspec.Struct, frozen=True, kw_only=True, tag="audio"):
    """Decodes an audio file to float32 [samples]."""

    processing: AudioProcessing


Job = ImageJob | VideoJob | FramesJob | AudioJob


class Decoded(msgspec.Struct, frozen=True, kw_only=True, tag="decoded"):
    """Result of a successful job; the elements follow."""

    shape: tuple[int, ...]
    frame_seconds: tuple[float, ...] = ()
    """For videos, as in `glimpse.media.processing.video.Video`."""
    fps: float | None = None
    """For videos, as in `glimpse.media.processing.video.Video`."""


class DecodeFailed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """Result of a job whose files cannot be used."""

    code: MediaErrorCode
    message: str


class _JobMessage(msgspec.Struct, frozen=True, kw_only=True):
    job: Job
    file_sizes: tuple[int, ...]
    """In bytes."""


_job_decoder = msgspec.json.Decoder(_JobMessage)
_result_decoder: msgspec.json.Decoder[Decoded | DecodeFailed] = msgspec.json.Decoder(Decoded | DecodeFailed)


def write_job(stream: IO[bytes], job: Job, files: tuple[bytes, ...]) -> None:
    """Writes a job and its files; blocks. Raises OSError if the other side has closed the pipe."""
    write_message(stream, _JobMessage(job=job, file_sizes=tuple(map(len, files))), *files)


def read_job(stream: IO[bytes]) -> tuple[Job, list[bytes]] | None:
    """Reads a job and its files; blocks. Returns None at the end of the stream."""
    try:
        message = _job_decoder.decode(read_message(stream))
    except StreamEndedError:
        return None
    return message.job, [stream.read(size) for size in message.file_sizes]


def write_result(stream: IO[bytes], result: Decoded | DecodeFailed, elements: bytes | memoryview = b"") -> None:
    """Writes a result and its elements; blocks. Raises OSError if the other side has closed the pipe."""
    write_message(stream, result, elements)


def read_result(stream: IO[bytes]) -> Decoded | DecodeFailed:
    """Reads a result without its elements; blocks. Raises StreamEndedError."""
    try:
        return _result_decoder.decode(read_message(stream))
    except msgspec.DecodeError as error:
        raise StreamEndedError from error
