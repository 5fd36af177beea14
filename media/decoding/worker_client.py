"""Client of the decoding workers: sends jobs and validates the results.

A worker may have been compromised by a file, so its results are not trusted: sizes are checked before memory is
allocated, and content keys are computed here.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import IO, assert_never

import numpy as np
import numpy.typing as npt

from glimpse.media.decoding.framing import StreamEndedError, read_exactly
from glimpse.media.decoding.jobs import (
    AudioJob,
    Decoded,
    DecodeFailed,
    FramesJob,
    ImageJob,
    Job,
    VideoJob,
    read_result,
    write_job,
)
from glimpse.media.decoding.worker_pool import WORKER_COMMAND, WorkerLimits, WorkerPool
from glimpse.media.errors import MediaError
from glimpse.media.native.library import environment_for_workers
from glimpse.media.processing.audio import Audio, AudioProcessing, audio_from_samples
from glimpse.media.processing.image import Image, ImageProcessing, image_from_pixels
from glimpse.media.processing.smart_resize import LARGEST_MAX_PIXELS
from glimpse.media.processing.video import Video, VideoProcessing, video_from_pixels
from glimpse.media.processing.video_options import LARGEST_TOTAL_PIXELS, VideoOptions

_MEMORY_BYTES = 3 << 30
"""Address space for the program, two copies of the largest file, two forms of the largest media, and decoder frames."""
IMAGE_LIMITS = WorkerLimits(memory_bytes=_MEMORY_BYTES, cpu_seconds=20, timeout_seconds=60)
VIDEO_LIMITS = WorkerLimits(memory_bytes=_MEMORY_BYTES, cpu_seconds=120, timeout_seconds=240)


class IsolatedDecoders:
    """Decodes the media of all requests of one event loop. Images and audio do not wait for videos."""

    def __init__(
        self,
        *,
        num_images: int,
        num_videos: int,
        image_limits: WorkerLimits = IMAGE_LIMITS,
        video_limits: WorkerLimits = VIDEO_LIMITS,
        command: Sequence[str] = WORKER_COMMAND,
    ) -> None:
        """
        Args:
            num_images: Number of images and audio files decoded concurrently.
            num_videos: Number of videos decoded concurrently, files and lists of frames together.
            image_limits: Limits of a worker for images and audio.
            video_limits: Limits of a worker for videos.
            command: Command that starts a worker.
        """
        self._images = WorkerPool(
            num_workers=num_images, limits=image_limits, environment=_environment, command=command
        )
        self._videos = WorkerPool(
            num_workers=num_videos, limits=video_limits, environment=_environment, command=command
        )

    async def image(self, data: bytes, processing: ImageProcessing, *, max_decoded_pixels: int) -> Image:
        """Like `glimpse.media.processing.image.prepare_image`, for a file."""
        job = ImageJob(processing=processing, max_decoded_pixels=max_decoded_pixels)
        return await self._images.run(partial(_request_image, job, data), what="image")

    async def audio(self, data: bytes, processing: AudioProcessing) -> Audio:
        """Like `glimpse.media.decoding.audio_file.audio_from_file`."""
        return await self._images.run(partial(_request_audio, AudioJob(processing=processing), data), what="audio")

    async def video_from_file(self, data: bytes, processing: VideoProcessing, options: VideoOptions) -> Video:
        """Like `glimpse.media.decoding.video_file.video_from_file`."""
        job = VideoJob(processing=processing, options=options)
        return await self._videos.run(partial(_request_video, job, (data,)), what="video")

    async def video_from_image_files(
        self,
        files: Sequence[bytes],
        frame_indices: Sequence[int],
        processing: VideoProcessing,
        options: VideoOptions,
        *,
        max_decoded_pixels: int,
    ) -> Video:
        """Like `glimpse.media.decoding.video_frames.video_from_image_files`."""
        job = FramesJob(
            processing=processing,
            options=options,
            frame_indices=tuple(frame_indices),
            max_decoded_pixels=max_decoded_pixels,
        )
        return await self._videos.run(partial(_request_video, job, tuple(files)), what="video")

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


# These block. They raise MediaError if the worker reports an error, and OSError or StreamEndedError if it fails itself.


def _request_image(job: ImageJob, file: bytes, stdin: IO[bytes], stdout: IO[bytes]) -> Image:
    decoded = _request(job, (file,), stdin, stdout)
    side = job.processing.patch_size * job.processing.merge_size
    match decoded.shape:
        case height, width, 3 if height % side == 0 and width % side == 0:
            # Sides are rounded up when an image is enlarged.
            pixels = _read_pixels(decoded, stdout, max_bytes=2 * LARGEST_MAX_PIXELS * 3)
            return image_from_pixels(pixels, job.processing)
        case _:
            raise StreamEndedError


def _request_video(job: VideoJob | FramesJob, files: tuple[bytes, ...], stdin: IO[bytes], stdout: IO[bytes]) -> Video:
    decoded = _request(job, files, stdin, stdout)
    match decoded.shape:
        case num_frames, _, _, 3 if len(decoded.frame_seconds) in (0, num_frames):
            pixels = _read_pixels(
                decoded, stdout, max_bytes=job.processing.temporal_patch_size * LARGEST_TOTAL_PIXELS * 3
            )
            return video_from_pixels(pixels, job.processing, frame_seconds=decoded.frame_seconds, fps=decoded.fps)
        case _:
            raise StreamEndedError


def _request_audio(job: AudioJob, file: bytes, stdin: IO[bytes], stdout: IO[bytes]) -> Audio:
    decoded = _request(job, (file,), stdin, stdout)
    match decoded.shape:
        case (num_samples,) if 0 <= num_samples <= job.processing.max_samples:
            samples = np.empty(num_samples, np.float32)
            read_exactly(stdout, samples.data.cast("B"))
            return audio_from_samples(samples, job.processing)
        case _:
            raise StreamEndedError


def _request(job: Job, files: tuple[bytes, ...], stdin: IO[bytes], stdout: IO[bytes]) -> Decoded:
    write_job(stdin, job, files)
    result = read_result(stdout)
    match result:
        case DecodeFailed(code=code, message=message):
            raise MediaError(code, message)
        case Decoded():
            return result
        case _:
            assert_never(result)


def _read_pixels(decoded: Decoded, stream: IO[bytes], *, max_bytes: int) -> npt.NDArray[np.uint8]:
    if min(decoded.shape) < 1 or math.prod(decoded.shape) > max_bytes:
        raise StreamEndedError
    pixels = np.empty(decoded.shape, np.uint8)
    read_exactly(stream, pixels.data.cast("B"))
    return pixels
