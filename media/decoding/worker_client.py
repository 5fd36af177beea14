"""Media decoded in other processes: what they are asked, and what of their answers is believed.

What comes back is a stranger's: its size is checked before there is memory for it, and keys are made here.
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
    FramesJob,
    ImageJob,
    Job,
    Refused,
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
"""Address space: the program, twice the largest file, the largest clip or picture in two forms, a decoder's frames."""
IMAGE_LIMITS = WorkerLimits(memory_bytes=_MEMORY_BYTES, cpu_seconds=20, timeout_seconds=60)
VIDEO_LIMITS = WorkerLimits(memory_bytes=_MEMORY_BYTES, cpu_seconds=120, timeout_seconds=240)


class IsolatedDecoders:
    """Decodes the media of all requests, of one event loop. Pictures, and whatever is short, do not wait for clips."""

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
            num_images: Pictures and sounds that are decoded at the same time.
            num_videos: Clips of either kind, files and pictures, that are decoded at the same time.
            image_limits: Of a process that decodes pictures and sounds.
            video_limits: Of one that decodes clips.
            command: Starts a process.
        """
        self._images = WorkerPool(
            num_workers=num_images, limits=image_limits, environment=_environment, command=command
        )
        self._videos = WorkerPool(
            num_workers=num_videos, limits=video_limits, environment=_environment, command=command
        )

    async def image(self, data: bytes, processing: ImageProcessing, *, max_decoded_pixels: int) -> Image:
        """As `glimpse.media.processing.image.prepare_image`, of a file."""
        job = ImageJob(processing=processing, max_decoded_pixels=max_decoded_pixels)
        return await self._images.run(partial(_ask_image, job, data), what="picture")

    async def audio(self, data: bytes, processing: AudioProcessing) -> Audio:
        """As `glimpse.media.decoding.audio_file.audio_from_file`."""
        return await self._images.run(partial(_ask_audio, AudioJob(processing=processing), data), what="sound")

    async def video_from_file(self, data: bytes, processing: VideoProcessing, options: VideoOptions) -> Video:
        """As `glimpse.media.decoding.video_file.video_from_file`."""
        job = VideoJob(processing=processing, options=options)
        return await self._videos.run(partial(_ask_video, job, (data,)), what="video")

    async def video_from_image_files(
        self,
        files: Sequence[bytes],
        frame_indices: Sequence[int],
        processing: VideoProcessing,
        options: VideoOptions,
        *,
        max_decoded_pixels: int,
    ) -> Video:
        """As `glimpse.media.decoding.video_frames.video_from_image_files`."""
        job = FramesJob(
            processing=processing,
            options=options,
            frame_indices=tuple(frame_indices),
            max_decoded_pixels=max_decoded_pixels,
        )
        return await self._videos.run(partial(_ask_video, job, tuple(files)), what="clip")

    async def warm(self) -> None:
        """Starts a process for the first picture."""
        await self._images.warm()

    async def close(self) -> None:
        """Ends the processes; what they have begun is awaited."""
        await self._images.close()
        await self._videos.close()


def _environment() -> dict[str, str]:
    """For a process that decodes; compiles the media kernels if they have not been on this machine."""
    # Pillow has large pictures in several pieces, and only those in one piece are resized where they are.
    return {"PILLOW_BLOCK_SIZE": "1024m", **environment_for_workers()}


# These block. They raise MediaError for what a process says, and OSError or StreamEndedError where it says nothing.


def _ask_image(job: ImageJob, file: bytes, to: IO[bytes], back: IO[bytes]) -> Image:
    decoded = _ask(job, (file,), to, back)
    side = job.processing.patch_size * job.processing.merge_size
    match decoded.shape:
        case height, width, 3 if height % side == 0 and width % side == 0:
            # Sides are rounded up where a picture is enlarged.
            pixels = _read_pixels(decoded, back, most=2 * LARGEST_MAX_PIXELS * 3)
            return image_from_pixels(pixels, job.processing)
        case _:
            raise StreamEndedError


def _ask_video(job: VideoJob | FramesJob, files: tuple[bytes, ...], to: IO[bytes], back: IO[bytes]) -> Video:
    decoded = _ask(job, files, to, back)
    match decoded.shape:
        case num_frames, _, _, 3 if len(decoded.frame_seconds) in (0, num_frames):
            pixels = _read_pixels(decoded, back, most=job.processing.temporal_patch_size * LARGEST_TOTAL_PIXELS * 3)
            return video_from_pixels(pixels, job.processing, frame_seconds=decoded.frame_seconds, fps=decoded.fps)
        case _:
            raise StreamEndedError


def _ask_audio(job: AudioJob, file: bytes, to: IO[bytes], back: IO[bytes]) -> Audio:
    decoded = _ask(job, (file,), to, back)
    match decoded.shape:
        case (num_samples,) if 0 <= num_samples <= job.processing.max_samples:
            samples = np.empty(num_samples, np.float32)
            read_exactly(back, samples.data.cast("B"))
            return audio_from_samples(samples, job.processing)
        case _:
            raise StreamEndedError


def _ask(job: Job, files: tuple[bytes, ...], to: IO[bytes], back: IO[bytes]) -> Decoded:
    write_job(to, job, files)
    result = read_result(back)
    match result:
        case Refused(code=code, message=message):
            raise MediaError(code, message)
        case Decoded():
            return result
        case _:
            assert_never(result)


def _read_pixels(decoded: Decoded, stream: IO[bytes], *, most: int) -> npt.NDArray[np.uint8]:
    if min(decoded.shape) < 1 or math.prod(decoded.shape) > most:
        raise StreamEndedError
    pixels = np.empty(decoded.shape, np.uint8)
    read_exactly(stream, pixels.data.cast("B"))
    return pixels
