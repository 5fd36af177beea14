"""Files → pictures and clips, decoded beside the event loop: in threads, and video files in processes of their own.

Knows limits on what is decoded and on how much at once; fetches nothing.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import PIL.Image

from media.clip import Clip, VideoProcessing
from media.clip_file import clip_of_file
from media.clip_frames import clip_of_frames
from media.clip_options import ClipOptions
from media.clip_workers import ClipWorkers
from media.decode import open_image
from media.errors import MediaError, MediaErrorCode
from media.image import Image, ImageProcessing, prepare_image

_WORKER_MEMORY_BYTES = 3 << 30
"""Of a process that decodes files: twice the largest file, the largest clip, a decoder's frames, and the program."""

_MAX_LISTED_PIXELS = 4_000_000_000
"""Of all pictures of one clip before they are resized: about a minute of a processor."""


class Decoders:
    """Decodes the media of all requests, of one event loop.

    A task that awaits a result may be cancelled at any time: a picture whose decoding has begun is decoded to its end
    in its thread, and dropped; of a clip no further frame is decoded.
    """

    def __init__(
        self,
        *,
        max_decoded_pixels: int = 64_000_000,
        num_threads: int = 2,
        num_clips: int = 2,
        isolated: bool = True,
        timeout_seconds: float = 120.0,
    ) -> None:
        """Sets the limits.

        Args:
            max_decoded_pixels: The largest picture before it is resized.
            num_threads: Pictures that are decoded at the same time.
            num_clips: Clips of either kind, files and pictures, that are decoded at the same time.
            isolated: Video files are decoded in processes of their own. Else in threads, which is for files of one's
                own: what stops the decoder stops this process.
            timeout_seconds: For decoding one video file, where that is done in a process.
        """
        self._max_decoded_pixels = max_decoded_pixels
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="media")
        # Of their own: a clip takes as long as hundreds of pictures, which are not to wait for it.
        self._clip_threads = ThreadPoolExecutor(num_clips, thread_name_prefix="clips")
        self._clip_workers = ClipWorkers(
            num_workers=num_clips, memory_bytes=_WORKER_MEMORY_BYTES, timeout_seconds=timeout_seconds
        )
        self._isolated = isolated

    async def image(self, data: bytes, processing: ImageProcessing) -> Image:
        """Decodes a picture's file. Raises MediaError."""
        decode = partial(_decode, data, processing, self._max_decoded_pixels)
        return await asyncio.get_running_loop().run_in_executor(self._threads, decode)

    async def clip_of_file(self, data: bytes, processing: VideoProcessing, options: ClipOptions) -> Clip:
        """Decodes the frames of a video file that are taken. Raises MediaError."""
        if self._isolated:
            return await self._clip_workers.clip_of_file(data, processing, options)
        return await self._in_clip_thread(partial(clip_of_file, data, processing, options))

    async def clip_of_pictures(
        self, files: Sequence[bytes], taken: Sequence[int], processing: VideoProcessing, options: ClipOptions
    ) -> Clip:
        """Decodes pictures that are a clip's frames; `taken` as `clip_of_frames` has it. Raises MediaError."""

        def decode(stopped: Callable[[], bool]) -> Clip:
            return clip_of_frames(_pictures(files, self._max_decoded_pixels, stopped), taken, processing, options)

        return await self._in_clip_thread(decode)

    async def close(self) -> None:
        """Ends threads and processes; what they have begun is awaited, what waits for them is cancelled."""
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)
        await asyncio.to_thread(self._clip_threads.shutdown, cancel_futures=True)
        await self._clip_workers.close()

    async def _in_clip_thread(self, decode: Callable[..., Clip]) -> Clip:
        """Runs `decode(stopped=…)`, which asks `stopped` whether this task was cancelled."""
        cancelled = threading.Event()
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._clip_threads, partial(decode, stopped=cancelled.is_set)
            )
        except asyncio.CancelledError:
            cancelled.set()
            raise


def _decode(data: bytes, processing: ImageProcessing, max_decoded_pixels: int) -> Image:
    return prepare_image(open_image(data, max_pixels=max_decoded_pixels), processing)


def _pictures(
    files: Sequence[bytes], max_decoded_pixels: int, stopped: Callable[[], bool]
) -> Iterator[PIL.Image.Image]:
    num_pixels = 0
    for file in files:
        if stopped():
            raise MediaError(MediaErrorCode.INVALID_MEDIA, "nobody waits for the clip any more")
        picture = open_image(file, max_pixels=max_decoded_pixels)
        num_pixels += picture.width * picture.height
        if num_pixels > _MAX_LISTED_PIXELS:
            message = f"the clip's pictures have more than {_MAX_LISTED_PIXELS} pixels together"
            raise MediaError(MediaErrorCode.TOO_LARGE, message)
        yield picture
