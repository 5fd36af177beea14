"""Files → media, decoded beside the event loop: in processes of their own, or in threads.

Knows limits on what is decoded and on how much at once; fetches nothing.
"""

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

MediumT = TypeVar("MediumT")

_MOST_IMAGES = 8


class Decoders:
    """Decodes the media of all requests, of one event loop.

    A task that awaits a result may be cancelled at any time: a picture whose decoding has begun is decoded to its end,
    and dropped; of a clip or a sound no more is decoded.
    """

    def __init__(
        self,
        *,
        max_decoded_pixels: int = 64_000_000,
        num_images: int | None = None,
        num_videos: int = 2,
        isolated: bool = True,
    ) -> None:
        """Sets the limits.

        Args:
            max_decoded_pixels: The largest picture before it is resized.
            num_images: Pictures that are decoded at the same time; by default as many as there are processors, but 2
                at least and 8 at most.
            num_videos: Clips of either kind, files and pictures, that are decoded at the same time.
            isolated: Decoding happens in processes with bounds on memory and time. Else in threads, which is for files
                of one's own: what stops the decoder stops this process.
        """
        self._max_decoded_pixels = max_decoded_pixels
        num_images = num_images or min(max(len(os.sched_getaffinity(0)), 2), _MOST_IMAGES)
        self._isolated = IsolatedDecoders(num_images=num_images, num_videos=num_videos) if isolated else None
        self._threads = ThreadPoolExecutor(num_images, thread_name_prefix="media")
        # Of their own: a clip takes as long as hundreds of pictures, which are not to wait for it.
        self._video_threads = ThreadPoolExecutor(num_videos, thread_name_prefix="clips")

    async def image(self, data: bytes, processing: ImageProcessing) -> Image:
        """Decodes a picture's file. Raises MediaError."""
        if self._isolated is not None:
            return await self._isolated.image(data, processing, max_decoded_pixels=self._max_decoded_pixels)
        decode = partial(_decode, data, processing, self._max_decoded_pixels)
        return await asyncio.get_running_loop().run_in_executor(self._threads, decode)

    async def audio(self, data: bytes, processing: AudioProcessing) -> Audio:
        """Decodes what is heard of a sound file, or of a video's sound. Raises MediaError."""
        if self._isolated is not None:
            return await self._isolated.audio(data, processing)
        return await _stoppable(self._threads, partial(audio_from_file, data, processing))

    async def video_from_file(self, data: bytes, processing: VideoProcessing, options: VideoOptions) -> Video:
        """Decodes the frames of a video file that are taken. Raises MediaError."""
        if self._isolated is not None:
            return await self._isolated.video_from_file(data, processing, options)
        return await _stoppable(self._video_threads, partial(video_from_file, data, processing, options))

    async def video_from_image_files(
        self, files: Sequence[bytes], frame_indices: Sequence[int], processing: VideoProcessing, options: VideoOptions
    ) -> Video:
        """Decodes images that are a video's frames; see `video_from_images`. Raises MediaError."""
        most = self._max_decoded_pixels
        if self._isolated is not None:
            return await self._isolated.video_from_image_files(
                files, frame_indices, processing, options, max_decoded_pixels=most
            )
        decode = partial(video_from_image_files, files, frame_indices, processing, options, max_decoded_pixels=most)
        return await _stoppable(self._video_threads, decode)

    async def warm(self) -> None:
        """Makes ready what the first picture would have to wait for."""
        if self._isolated is not None:
            await self._isolated.warm()

    async def close(self) -> None:
        """Ends threads and processes; what they have begun is awaited, what waits for them is cancelled."""
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)
        await asyncio.to_thread(self._video_threads.shutdown, cancel_futures=True)
        if self._isolated is not None:
            await self._isolated.close()


def _decode(data: bytes, processing: ImageProcessing, max_decoded_pixels: int) -> Image:
    return prepare_image(open_image(data, max_pixels=max_decoded_pixels), processing)


async def _stoppable(threads: ThreadPoolExecutor, decode: Callable[..., MediumT]) -> MediumT:
    """Runs `decode(stopped=…)`, which asks `stopped` whether this task was cancelled."""
    cancelled = threading.Event()
    try:
        return await asyncio.get_running_loop().run_in_executor(threads, partial(decode, stopped=cancelled.is_set))
    except asyncio.CancelledError:
        cancelled.set()
        raise
