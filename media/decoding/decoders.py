"""Decoding off the event loop, in worker processes or in threads, with limits on size and concurrency."""

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from glimpse.media.decoding.jobs import DecodedMedia, FramesJob, Job, VideoJob
from glimpse.media.decoding.worker_client import IsolatedDecoders
from glimpse.media.limits import MAX_DECODED_PIXELS
from glimpse.native.processors import num_processors

_MAX_IMAGE_WORKERS = 8
_NUM_VIDEOS = 2
"""Videos of one client that are decoded at once, files and lists of frames together."""


class Decoders:
    """Decodes the media of all requests of one event loop.

    A task that awaits a result may be cancelled at any time. Decoding of an image then runs to its end and the result
    is dropped; decoding of a video or audio stops at the next frame.
    """

    def __init__(
        self,
        *,
        max_decoded_pixels: int = MAX_DECODED_PIXELS,
        num_images: int | None = None,
        num_sharing: int = 1,
        isolated: bool = True,
    ) -> None:
        """
        Args:
            max_decoded_pixels: Limit on an image before resizing.
            num_images: Number of images and pages of one client decoded concurrently; by default its share of the
                CPUs, between 2 and 8.
            num_sharing: Number of processes that share the CPUs.
            isolated: Decode in processes with limits on memory and time. False decodes in threads, which suits trusted
                files only: what crashes the decoder crashes this process.
        """
        self._max_decoded_pixels = max_decoded_pixels
        num_images = num_images or min(max(num_processors() // num_sharing, 2), _MAX_IMAGE_WORKERS)
        self._isolated = (
            IsolatedDecoders(num_images=num_images, num_videos=_NUM_VIDEOS, max_decoded_pixels=max_decoded_pixels)
            if isolated
            else None
        )
        self._threads = ThreadPoolExecutor(num_images, thread_name_prefix="media")
        # A separate pool: a video takes as long as hundreds of images, which must not wait for it.
        self._video_threads = ThreadPoolExecutor(_NUM_VIDEOS, thread_name_prefix="videos")

    async def decode(self, job: Job, files: Sequence[bytes], *, client: str = "") -> DecodedMedia:
        """Decodes the files of one media input. Clients get workers in turn. Raises MediaError."""
        if self._isolated is not None:
            return await self._isolated.decode(job, files, client=client)
        from glimpse.media.decoding.decode import decode  # noqa: PLC0415 - a server's processes need no FFmpeg

        threads = self._video_threads if isinstance(job, VideoJob | FramesJob) else self._threads
        cancelled = threading.Event()
        work = partial(decode, job, files, self._max_decoded_pixels, cancelled.is_set)
        try:
            return await asyncio.get_running_loop().run_in_executor(threads, work)
        except asyncio.CancelledError:
            cancelled.set()
            raise

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
