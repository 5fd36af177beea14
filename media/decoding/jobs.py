"""Messages between the front end and a decoding worker process.

A job is followed by the bytes of its files, and a result by the elements of the decoded media.
"""

from collections.abc import Sequence
from typing import IO, Annotated, TypeAlias

import msgspec

from glimpse.frames import Frames, write_message
from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.processing.audio import Audio, AudioProcessing
from glimpse.media.processing.document import DocumentPages, PageRange
from glimpse.media.processing.image import Image, ImageProcessing
from glimpse.media.processing.sizing.placement import ImageSource
from glimpse.media.processing.video import Video, VideoProcessing
from glimpse.media.processing.video_options import VideoOptions


class ImageJob(msgspec.Struct, frozen=True, kw_only=True, tag="image"):
    """Decodes an image file to uint8 [height, width, 3] or [tiles, height, width, 3]."""

    processing: ImageProcessing
    """Parameters with the request's bounds."""


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


class AudioJob(msgspec.Struct, frozen=True, kw_only=True, tag="audio"):
    """Decodes an audio file to float32 [samples]."""

    processing: AudioProcessing


class DocumentJob(msgspec.Struct, frozen=True, kw_only=True, tag="document"):
    """Reads how many pages a document has, and the text layers of some."""

    pages: PageRange
    max_texts: int
    """Texts are read if there are no more pages than this."""

    def texts_of(self, num_pages: int) -> range:
        """Returns the pages of a document of so many whose texts are read."""
        pages = self.pages.within(num_pages)
        return pages if len(pages) <= self.max_texts else range(0)


class PageJob(msgspec.Struct, frozen=True, kw_only=True, tag="page"):
    """Draws a page of a document, as `ImageJob` decodes an image."""

    processing: ImageProcessing
    """Parameters with the request's bounds."""
    number: int
    """The page's, from 1."""
    dpi: int | None


Job: TypeAlias = ImageJob | VideoJob | FramesJob | AudioJob | DocumentJob | PageJob
"""What to decode files to. The tags and fields are part of the keys of cached media."""
DecodedMedia: TypeAlias = Image | Video | Audio | DocumentPages


class Decoded(msgspec.Struct, frozen=True, kw_only=True, tag="decoded"):
    """Result of a successful job; the elements follow. Those of a document are the texts, in msgpack."""

    shape: tuple[int, ...]
    source: ImageSource | None = None
    """For images: the file."""
    frame_seconds: tuple[float, ...] = ()
    """For videos, as in `glimpse.media.processing.video.Video`."""
    fps: float | None = None
    """For videos, as in `glimpse.media.processing.video.Video`."""
    duration_seconds: float | None = None
    """For videos, as in `glimpse.media.processing.video.Video`."""
    num_pages: int = 0
    """For documents."""


class DecodeFailed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """Result of a job whose files cannot be used."""

    code: MediaErrorCode
    message: str


class NeedsMemory(msgspec.Struct, frozen=True, kw_only=True, tag="needs"):
    """Result of a job that is not begun: it takes more memory than it may."""

    num_bytes: Annotated[int, msgspec.Meta(ge=0)]


class DecodeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a job may take."""

    max_pixels: int
    """Pixels of an image, as it is decoded."""
    memory_bytes: int
    """Memory for the pixels of an image or of a video's frames, as they are decoded, and for copies of them."""

    def check_memory(self, num_bytes: int) -> None:
        """Raises NeedsMemoryError if the job may not take so much."""
        if num_bytes > self.memory_bytes:
            raise NeedsMemoryError(num_bytes)


class NeedsMemoryError(MediaError):
    """A job needs more memory than it may take."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__(MediaErrorCode.OVERLOADED, f"decoding needs {num_bytes} bytes of memory")
        self.num_bytes = num_bytes


class _JobMessage(msgspec.Struct, frozen=True, kw_only=True):
    job: Job
    limits: DecodeLimits
    file_sizes: tuple[int, ...]
    """In bytes."""


_JOBS = Frames[_JobMessage](_JobMessage)
RESULTS = Frames[Decoded | DecodeFailed | NeedsMemory](Decoded | DecodeFailed | NeedsMemory, max_bytes=1 << 20)


def write_job(stream: IO[bytes], job: Job, files: Sequence[bytes], limits: DecodeLimits) -> None:
    """Writes a job and its files; blocks. Raises OSError if the other side has closed the pipe."""
    write_message(stream, _JobMessage(job=job, limits=limits, file_sizes=tuple(map(len, files))), *files)


def read_job(stream: IO[bytes]) -> tuple[Job, list[bytes], DecodeLimits] | None:
    """Reads a job, its files and what it may take; blocks. Returns None at the end of the stream."""
    message = _JOBS.read(stream)
    if message is None:
        return None
    return message.job, [stream.read(size) for size in message.file_sizes], message.limits
