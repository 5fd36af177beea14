"""Decoding off the event loop, in worker processes or in threads, with limits on size and concurrency."""

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from glimpse.media.containers.still import open_image
from glimpse.media.decoding.audio_file import audio_from_file
from glimpse.media.decoding.video_file import video_from_file
from glimpse.media.decoding.video_frames import video_from_image_files
from glimpse.media.decoding.worker_client import IsolatedDecoders
from glimpse.media.processing.audio import Audio, AudioProcessing
from glimpse.media.processing.image import Image, ImageProcessing, prepare_image
from glimpse.media.processing.video import Video, VideoProcessing
from glimpse.media.processing.video_options import VideoOptions

MediaT = TypeVar("MediaT")

_MAX_IMAGE_WORKERS = 8


class Decoders:
    """Decodes the media of all requests of one event loop.

    A task that awaits a result may be cancelled at any time. Decoding of an image then runs to its end and the result
    is dropped; decoding of a video or audio stops at the next frame.
    """

    def __init__(
        self,
        *,
        max_decoded_pixels: int = 64_000_000,
        num_images: int | None = None,
        num_videos: int = 2,
        isolated: bool = True,
    ) -> None:
        """
        Args:
            max_decoded_pixels: Limit on an image before resizing.
            num_images: Number of images decoded concurrently; by default the number of CPUs, between 2 and 8.
            num_videos: Number of videos decoded concurrently, files and lists of frames together.
            isolated: Decode in processes with limits on memory and time. False decodes in threads, which suits trusted
                files only: what crashes the decoder crashes this process.
        """
        self._max_decoded_pixels = max_decoded_pixels
        num_images = num_images or min(max(len(os.sched_getaffinity(0)), 2), _MAX_IMAGE_WORKERS)
        self._isolated = IsolatedDecoders(num_images=num_images, num_videos=num_videos) if isolated else None
        self._threads = ThreadPoolExecutor(num_images, thread_name_prefix="media")
        # A separate pool: a video takes as long as hundreds of images, which must not wait for it.
        self._video_threads = ThreadPoolExecutor(num_videos, thread_name_prefix="videos")

    async def image(self, data: bytes, processing: ImageProcessing) -> Image:
        """Decodes an image file. Raises MediaError."""
        if self._isolated is not None:
            return await self._isolated.image(data, processing, max_decoded_pixels=self._max_decoded_pixels)
        decode = partial(_decode, data, processing, self._max_decoded_pixels)
        return await asyncio.get_running_loop().run_in_executor(self._threads, decode)

    async def audio(self, data: bytes, processing: AudioProcessing) -> Audio:
        """Decodes an audio file, or the audio of a video file. Raises MediaError."""
        if self._isolated is not None:
            return await self._isolated.audio(data, processing)
        return await _stoppable(self._threads, partial(audio_from_file, data, processing))

    async def video_from_file(self, data: bytes, processing: VideoProcessing, options: VideoOptions) -> Video:
        """Decodes the sampled frames of a video file. Raises MediaError."""
        if self._isolated is not None:
            return await self._isolated.video_from_file(data, processing, options)
        return await _stoppable(self._video_threads, partial(video_from_file, data, processing, options))

    async def video_from_image_files(
        self, files: Sequence[bytes], frame_indices: Sequence[int], processing: VideoProcessing, options: VideoOptions
    ) -> Video:
        """Decodes image files that are the sampled frames of a video. Raises MediaError."""
        max_pixels = self._max_decoded_pixels
        if self._isolated is not None:
            return await self._isolated.video_from_image_files(
                files, frame_indices, processing, options, max_decoded_pixels=max_pixels
            )
        decode = partial(
            video_from_image_files, files, frame_indices, processing, options, max_decoded_pixels=max_pixels
        )
        return await _stoppable(self._video_threads, decode)

    async def warm(self) -> None:
        """Starts what the first image would have to wait for."""
        if self._isolated is not None:
            await self._isolated.warm()

    async def close(self) -> None:
        """Ends threads and processes. Waits for work that has begun and cancels work that has not."""
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)
        await asyncio.to_thread(self._video_threads.shutdown, cancel_futures=True)
        if self._isolated is not None:
            await self._isolated.close()


def _decode(data: bytes, processing: ImageProcessing, max_decoded_pixels: int) -> Image:
    return prepare_image(open_image(data, max_pixels=max_decoded_pixels), processing)


async def _stoppable(threads: ThreadPoolExecutor, decode: Callable[..., MediaT]) -> MediaT:
    """Runs `decode(stopped=…)`; `stopped` returns True once this task is cancelled."""
    cancelled = threading.Event()
    try:
        return await asyncio.get_running_loop().run_in_executor(threads, partial(decode, stopped=cancelled.is_set))
    except asyncio.CancelledError:
        cancelled.set()
        raise
