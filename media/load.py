"""Sources → media that are ready for the engine. Knows limits of time and bytes, not formats."""

import asyncio
from collections.abc import Sequence
from typing import assert_never

from media.clip import Clip, VideoProcessing
from media.clip_frames import taken_frames
from media.clip_options import ClipOptions, check_options
from media.decoders import Decoders
from media.errors import MediaError, MediaErrorCode
from media.fetch import fetch
from media.image import Image, ImageProcessing
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


class MediaLoader:
    """Loads the media of all requests, of one event loop.

    A task that awaits a load may be cancelled at any time: a fetch stops at once, and decoding as `Decoders` says.
    """

    def __init__(
        self,
        *,
        processing: ImageProcessing,
        video_processing: VideoProcessing,
        policy: FetchPolicy,
        decoders: Decoders,
        image_timeout_seconds: float = 5.0,
        video_timeout_seconds: float = 30.0,
        max_image_bytes: int = DEFAULT_MAX_BYTES,
        max_clip_bytes: int = DEFAULT_MAX_CLIP_BYTES,
        max_fetches: int = 32,
    ) -> None:
        """Sets the limits.

        Args:
            processing: How the checkpoint wants its pictures.
            video_processing: How it wants its clips.
            policy: From where media may be fetched.
            decoders: What makes media of files; closed with the loader.
            image_timeout_seconds: For fetching one picture.
            video_timeout_seconds: For fetching one clip, all of its frames together where they are pictures.
            max_image_bytes: The largest file of a picture.
            max_clip_bytes: The largest file of a clip, and the most that the pictures of one may have together.
            max_fetches: Fetches at the same time; further ones wait.
        """
        self._processing = processing
        self._video_processing = video_processing
        self._policy = policy
        self._decoders = decoders
        self._image_timeout_seconds = image_timeout_seconds
        self._video_timeout_seconds = video_timeout_seconds
        self._max_image_bytes = max_image_bytes
        self._max_clip_bytes = max_clip_bytes
        self._fetches = asyncio.Semaphore(max_fetches)

    async def load_image(
        self, source: Source, *, min_pixels: int | None = None, max_pixels: int | None = None
    ) -> Image:
        """Loads a picture; `min_pixels` and `max_pixels` take the place of the checkpoint's bounds.

        Raises:
            MediaError: whatever is wrong with it.
        """
        processing = self._processing.bounded(min_pixels=min_pixels, max_pixels=max_pixels)
        data = await self._bytes(source, self._max_image_bytes, self._image_timeout_seconds)
        return await self._decoders.image(data, processing)

    async def load_clip(self, source: ClipSource, options: ClipOptions) -> Clip:
        """Loads a clip, a file or frames.

        Raises:
            MediaError: whatever is wrong with it.
        """
        if isinstance(source, FrameSources):
            return await self._load_frames(source.frames, options)
        check_options(options, of_frames=False)
        data = await self._bytes(source, self._max_clip_bytes, self._video_timeout_seconds)
        return await self._decoders.clip_of_file(data, self._video_processing, options)

    async def close(self) -> None:
        """Closes the decoders."""
        await self._decoders.close()

    async def _load_frames(self, frames: Sequence[Source], options: ClipOptions) -> Clip:
        taken = taken_frames(len(frames), options, depth=self._video_processing.temporal_patch_size)
        files = await self._frame_files([frames[index] for index in taken])
        return await self._decoders.clip_of_pictures(files, taken, self._video_processing, options)

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


def _too_large(max_bytes: int) -> MediaError:
    return MediaError(MediaErrorCode.TOO_LARGE, f"the medium is larger than {max_bytes} bytes")
