"""Client of the decoding workers: sends jobs and validates the results.

A worker may have been compromised by a file, so its results are not trusted: sizes are checked before memory is
allocated, and content keys are computed here.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import IO, assert_never

import msgspec
import numpy as np
import numpy.typing as npt

from glimpse.frames import TransportError, fill
from glimpse.media.cache.fair_share import FairPlaces, FreeMemory
from glimpse.media.containers.still import MAX_JPEG_PIXELS, MAX_PIXEL_BYTES
from glimpse.media.decoding.document_file import MAX_CHARACTERS
from glimpse.media.decoding.jobs import (
    RESULTS,
    AudioJob,
    Decoded,
    DecodedMedia,
    DecodeFailed,
    DecodeLimits,
    DocumentJob,
    FramesJob,
    ImageJob,
    Job,
    NeedsMemory,
    NeedsMemoryError,
    PageJob,
    VideoJob,
    write_job,
)
from glimpse.media.decoding.worker_pool import WORKER_COMMAND, WorkerLimits, WorkerPool
from glimpse.media.errors import MediaError
from glimpse.media.native.library import environment_for_workers
from glimpse.media.processing.audio import audio_from_samples
from glimpse.media.processing.document import DocumentPages
from glimpse.media.processing.image import ImageProcessing, image_from_pixels
from glimpse.media.processing.sizing.placement import ImagePlacement
from glimpse.media.processing.sizing.smart_resize import LARGEST_MAX_PIXELS
from glimpse.media.processing.video import video_from_pixels

_MEMORY_BYTES = 3 << 30
"""Address space for the program, two copies of the largest file, two forms of the largest media, and decoder frames."""
_UNASKED_BYTES = 64 << 20
"""Memory that each medium may take as it is decoded, whatever others take: that of 16 million pixels."""
_MAX_IMAGE_BYTES = 2 * LARGEST_MAX_PIXELS * 3
"""Sides are rounded up when an image is enlarged."""
_MAX_TEXT_BYTES = 4 * MAX_CHARACTERS + (1 << 24)
"""In msgpack, with what is written around each text."""
IMAGE_LIMITS = WorkerLimits(memory_bytes=_MEMORY_BYTES, cpu_seconds=20, timeout_seconds=60)
VIDEO_LIMITS = WorkerLimits(memory_bytes=_MEMORY_BYTES, cpu_seconds=120, timeout_seconds=240)


class IsolatedDecoders:
    """Decodes the media of all requests of one event loop. Images, audio and documents do not wait for videos."""

    def __init__(
        self,
        *,
        num_images: int,
        num_videos: int,
        max_decoded_pixels: int,
        image_limits: WorkerLimits = IMAGE_LIMITS,
        video_limits: WorkerLimits = VIDEO_LIMITS,
        command: Sequence[str] = WORKER_COMMAND,
    ) -> None:
        """
        Args:
            num_images: Number of images, audio files and pages of one client decoded concurrently.
            num_videos: Number of videos of one client decoded concurrently, files and lists of frames together.
            max_decoded_pixels: Limit on an image before resizing.
        """
        self._max_decoded_pixels = max_decoded_pixels
        self._images = WorkerPool(
            num_workers=num_images, limits=image_limits, environment=_environment, command=command
        )
        self._videos = WorkerPool(
            num_workers=num_videos, limits=video_limits, environment=_environment, command=command
        )
        self._memory = FairPlaces(capacity=FreeMemory())

    async def decode(self, job: Job, files: Sequence[bytes], *, client: str = "") -> DecodedMedia:
        """Decodes files of a client in a worker. Raises MediaError.

        A large image or video waits until there is memory for it: else the kernel would kill its worker, and no idle
        one would be left for others.
        """
        try:
            return await self._run(job, files, client, _UNASKED_BYTES)
        except NeedsMemoryError as needed:
            num_bytes = needed.num_bytes
        async with self._memory.place(client, num_bytes):
            return await self._run(job, files, client, num_bytes)

    async def _run(self, job: Job, files: Sequence[bytes], client: str, memory_bytes: int) -> DecodedMedia:
        pool = self._videos if isinstance(job, VideoJob | FramesJob) else self._images
        limits = DecodeLimits(max_pixels=self._max_decoded_pixels, memory_bytes=memory_bytes)
        return await pool.run(partial(_request, job, files, limits), what=_name(job), client=client)

    async def warm(self) -> None:
        """Starts a worker for the first image."""
        await self._images.warm()

    async def close(self) -> None:
        """Ends the workers after their current jobs."""
        await self._images.close()
        await self._videos.close()


def _environment() -> dict[str, str]:
    """Returns environment variables for workers. Compiles the native resampler if this machine has not yet."""
    # By default Pillow splits large images into blocks, and only contiguous ones are resized in place.
    return {"PILLOW_BLOCK_SIZE": "1024m", **environment_for_workers()}


def _name(job: Job) -> str:
    match job:
        case ImageJob():
            return "image"
        case VideoJob() | FramesJob():
            return "video"
        case AudioJob():
            return "audio"
        case DocumentJob():
            return "document"
        case PageJob(number=number):
            return f"document's page {number}"
        case _:
            assert_never(job)


def _request(
    job: Job, files: Sequence[bytes], limits: DecodeLimits, stdin: IO[bytes], stdout: IO[bytes]
) -> DecodedMedia:
    """Blocks. Raises MediaError if the worker reports an error; OSError, EOFError or TransportError if it fails."""
    write_job(stdin, job, files, limits)
    result = RESULTS.read(stdout)
    match result:
        case NeedsMemory(num_bytes=num_bytes):
            of_image = MAX_PIXEL_BYTES * limits.max_pixels
            most = max(of_image, _MEMORY_BYTES) if isinstance(job, VideoJob | FramesJob) else of_image
            if not limits.memory_bytes < num_bytes <= most:
                raise TransportError("the memory does not fit the job")
            raise NeedsMemoryError(num_bytes)
        case DecodeFailed(code=code, message=message):
            raise MediaError(code, message)
        case Decoded():
            return _read_media(job, result, stdout)
        case None:
            raise EOFError
        case _:
            assert_never(result)


def _read_media(job: Job, decoded: Decoded, stdout: IO[bytes]) -> DecodedMedia:
    """Reads the elements of a result. Raises TransportError if its shape does not fit the job, or EOFError."""
    match job, decoded.shape:
        case ((ImageJob(processing=processing) | PageJob(processing=processing)), _):
            placement = _place(decoded, processing)
            pixels = _read_pixels(decoded, stdout, max_bytes=_MAX_IMAGE_BYTES)
            return image_from_pixels(pixels, placement, processing)
        case ((VideoJob(processing=processing) | FramesJob(processing=processing)), (num_frames, height, width, 3)) if (
            len(decoded.frame_seconds) in (0, num_frames)
            and all(map(math.isfinite, decoded.frame_seconds))
            and processing.sizing.fits(num_frames, height, width)
        ):
            pixels = _read_pixels(decoded, stdout)
            return video_from_pixels(
                pixels,
                processing,
                frame_seconds=decoded.frame_seconds,
                fps=decoded.fps,
                duration_seconds=decoded.duration_seconds,
            )
        case AudioJob(processing=processing), (num_samples,) if 0 <= num_samples <= processing.max_samples:
            samples = np.empty(num_samples, np.float32)
            _fill(samples, stdout)
            return audio_from_samples(samples, processing)
        case DocumentJob(), (num_bytes,) if 0 < num_bytes <= _MAX_TEXT_BYTES and decoded.num_pages > 0:
            return _read_document(job, decoded, stdout)
        case _:
            raise TransportError("the shape does not fit the job")


def _place(decoded: Decoded, processing: ImageProcessing) -> ImagePlacement:
    """Returns what becomes of the image that the worker read. Raises TransportError if it made something else."""
    source = decoded.source
    if source is None or min(source.width, source.height) < 1 or source.width * source.height > MAX_JPEG_PIXELS:
        raise TransportError("the worker read no image")
    try:
        placement = processing.place(source)
    except MediaError as error:
        raise TransportError("the worker made pixels of an image that the model cannot read") from error
    if placement.plan.shape != decoded.shape:
        raise TransportError("the shape does not fit the job")
    return placement


def _read_document(job: DocumentJob, decoded: Decoded, stream: IO[bytes]) -> DocumentPages:
    packed = np.empty(decoded.shape, np.uint8)
    _fill(packed, stream)
    try:
        texts = msgspec.msgpack.decode(packed.data, type=tuple[str, ...])
    except msgspec.DecodeError as error:
        raise TransportError("the texts are none") from error
    if len(texts) != len(job.texts_of(decoded.num_pages)):
        raise TransportError("the texts do not fit the job")
    return DocumentPages(num_pages=decoded.num_pages, texts=texts)


def _read_pixels(decoded: Decoded, stream: IO[bytes], *, max_bytes: int | None = None) -> npt.NDArray[np.uint8]:
    if min(decoded.shape) < 1 or (max_bytes is not None and math.prod(decoded.shape) > max_bytes):
        raise TransportError("the shape does not fit the job")
    pixels = np.empty(decoded.shape, np.uint8)
    _fill(pixels, stream)
    return pixels


def _fill(elements: npt.NDArray[np.uint8 | np.float32], stream: IO[bytes]) -> None:
    if not fill(elements.data.cast("B"), stream):
        raise EOFError
