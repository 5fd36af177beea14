"""Sources → media that are ready for the engine, without holding up the event loop. Knows limits, not formats."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import assert_never

import PIL.Image

from media.clip import Clip, VideoProcessing
from media.clip_file import clip_of_file
from media.clip_frames import clip_of_frames, taken_frames
from media.clip_options import ClipOptions, check_options
from media.clip_workers import ClipWorkers
from media.decode import open_image
from media.errors import MediaError, MediaErrorCode
from media.fetch import fetch
from media.image import Image, ImageProcessing, prepare_image
from media.policy import FetchPolicy
from media.source import (
    DEFAULT_MAX_BYTES,
    DEFAULT_MAX_CLIP_BYTES,
    ClipSource,
    DataSource,
    FrameSources,
    Source,
    UrlSource,
)

_FRAMES_AT_ONCE = 4
"""Pictures of one clip that are fetched at the same time."""
_WORKER_MEMORY_BYTES = 3 << 30
"""Of a process that decodes files: twice the largest file, the largest clip, a decoder's frames, and the program."""

_MAX_LISTED_PIXELS = 4_000_000_000
"""Of all pictures of one clip before they are resized: about a minute of a processor."""


class MediaLoader:
    """Loads the media of all requests, of one event loop.

    A task that awaits a load may be cancelled at any time: a fetch stops at once; a picture whose decoding has begun is
    decoded to its end in its thread, and dropped; of a clip no further frame is decoded.
    """

    def __init__(
        self,
        *,
        processing: ImageProcessing,
        video_processing: VideoProcessing,
        policy: FetchPolicy,
        image_timeout_seconds: float = 5.0,
        video_timeout_seconds: float = 30.0,
        max_image_bytes: int = DEFAULT_MAX_BYTES,
        max_clip_bytes: int = DEFAULT_MAX_CLIP_BYTES,
        max_decoded_pixels: int = 64_000_000,
        max_fetches: int = 32,
        num_threads: int = 2,
        num_clips: int = 2,
        isolated: bool = True,
        decode_timeout_seconds: float = 120.0,
    ) -> None:
        """Sets the limits.

        Args:
            processing: How the checkpoint wants its pictures.
            video_processing: How it wants its clips.
            policy: From where media may be fetched.
            image_timeout_seconds: For fetching one picture.
            video_timeout_seconds: For fetching one clip, all of its frames together where they are pictures.
            max_image_bytes: The largest file of a picture.
            max_clip_bytes: The largest file of a clip, and the most that the pictures of one may have together.
            max_decoded_pixels: The largest picture before it is resized.
            max_fetches: Fetches at the same time; further ones wait.
            num_threads: Pictures that are decoded at the same time.
            num_clips: Clips of either kind, files and pictures, that are decoded at the same time.
            isolated: Video files are decoded in processes of their own. Else in threads, which is for files of one's
                own: what stops the decoder stops this process.
            decode_timeout_seconds: For decoding one video file, where that is done in a process.
        """
        self._processing = processing
        self._video_processing = video_processing
        self._policy = policy
        self._image_timeout_seconds = image_timeout_seconds
        self._video_timeout_seconds = video_timeout_seconds
        self._max_image_bytes = max_image_bytes
        self._max_clip_bytes = max_clip_bytes
        self._max_decoded_pixels = max_decoded_pixels
        self._fetches = asyncio.Semaphore(max_fetches)
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="media")
        # Of their own: a clip takes as long as hundreds of pictures, which are not to wait for it.
        self._clip_threads = ThreadPoolExecutor(num_clips, thread_name_prefix="clips")
        self._clip_workers = ClipWorkers(
            num_workers=num_clips, memory_bytes=_WORKER_MEMORY_BYTES, timeout_seconds=decode_timeout_seconds
        )
        self._isolated = isolated

    async def load_image(
        self, source: Source, *, min_pixels: int | None = None, max_pixels: int | None = None
    ) -> Image:
        """Loads a picture; `min_pixels` and `max_pixels` take the place of the checkpoint's bounds.

        Raises:
            MediaError: whatever is wrong with it.
        """
        processing = self._processing.bounded(min_pixels=min_pixels, max_pixels=max_pixels)
        data = await self._bytes(source, self._max_image_bytes, self._image_timeout_seconds)
        decode = partial(_decode, data, processing, self._max_decoded_pixels)
        return await asyncio.get_running_loop().run_in_executor(self._threads, decode)

    async def load_clip(self, source: ClipSource, options: ClipOptions) -> Clip:
        """Loads a clip, a file or frames.

        Raises:
            MediaError: whatever is wrong with it.
        """
        if isinstance(source, FrameSources):
            return await self._load_frames(source.frames, options)
        check_options(options, of_frames=False)
        data = await self._bytes(source, self._max_clip_bytes, self._video_timeout_seconds)
        if self._isolated:
            return await self._clip_workers.clip_of_file(data, self._video_processing, options)
        return await self._in_clip_thread(partial(clip_of_file, data, self._video_processing, options))

    async def close(self) -> None:
        """Ends the threads; what they have begun is awaited, what waits for them is cancelled."""
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)
        await asyncio.to_thread(self._clip_threads.shutdown, cancel_futures=True)
        await self._clip_workers.close()

    async def _load_frames(self, frames: Sequence[Source], options: ClipOptions) -> Clip:
        taken = taken_frames(len(frames), options, depth=self._video_processing.temporal_patch_size)
        files = await self._frame_files([frames[index] for index in taken])

        def decode(stopped: Callable[[], bool]) -> Clip:
            pictures = _pictures(files, self._max_decoded_pixels, stopped)
            return clip_of_frames(pictures, taken, self._video_processing, options)

        return await self._in_clip_thread(decode)

    async def _frame_files(self, sources: Sequence[Source]) -> list[bytes]:
        """The files of frames, fetched a few at a time within what a whole clip may take."""
        files: list[bytes] = []
        try:
            async with asyncio.timeout(self._video_timeout_seconds):
                for start in range(0, len(sources), _FRAMES_AT_ONCE):
                    left = self._max_clip_bytes - sum(map(len, files))
                    files += await self._some_files(sources[start : start + _FRAMES_AT_ONCE], left)
        except TimeoutError:
            message = f"the media servers did not deliver all frames within {self._video_timeout_seconds:g} s"
            raise MediaError(MediaErrorCode.FETCH_TIMEOUT, message) from None
        if sum(map(len, files)) > self._max_clip_bytes:
            raise _too_large(self._max_clip_bytes)
        return files

    async def _some_files(self, sources: Sequence[Source], max_bytes: int) -> list[bytes]:
        if max_bytes <= 0:
            raise _too_large(self._max_clip_bytes)
        most = min(max_bytes, self._max_image_bytes)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._bytes(source, most, self._image_timeout_seconds)) for source in sources
                ]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        return [task.result() for task in tasks]

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

    async def _bytes(self, source: Source, max_bytes: int, timeout_seconds: float) -> bytes:
        match source:
            case DataSource(data=data):
                if len(data) > max_bytes:
                    raise _too_large(max_bytes)
                return data
            case UrlSource(url=url):
                async with self._fetches:
                    return await fetch(url, policy=self._policy, max_bytes=max_bytes, timeout_seconds=timeout_seconds)
            case _:
                assert_never(source)


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


def _too_large(max_bytes: int) -> MediaError:
    return MediaError(MediaErrorCode.TOO_LARGE, f"the medium is larger than {max_bytes} bytes")
