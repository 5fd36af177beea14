"""Sources → media that are ready for the engine, without holding up the event loop. Knows limits, not formats."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import assert_never

from media.decode import open_image
from media.errors import MediaError, MediaErrorCode
from media.fetch import fetch
from media.image import Image, ImageProcessing, prepare_image
from media.policy import FetchPolicy
from media.source import DEFAULT_MAX_BYTES, DataSource, Source, UrlSource


class MediaLoader:
    """Loads the media of all requests, of one event loop.

    A task that awaits a load may be cancelled at any time: a fetch stops at once; a picture whose decoding has begun is
    decoded to its end in its thread, and dropped.
    """

    def __init__(
        self,
        *,
        processing: ImageProcessing,
        policy: FetchPolicy,
        image_timeout_seconds: float = 5.0,
        max_image_bytes: int = DEFAULT_MAX_BYTES,
        max_decoded_pixels: int = 64_000_000,
        max_fetches: int = 32,
        num_threads: int = 2,
    ) -> None:
        """Sets the limits.

        Args:
            processing: How the checkpoint wants its pictures.
            policy: From where media may be fetched.
            image_timeout_seconds: For fetching one picture.
            max_image_bytes: The largest file of a picture.
            max_decoded_pixels: The largest picture before it is resized.
            max_fetches: Fetches at the same time; further ones wait.
            num_threads: Pictures that are decoded at the same time.
        """
        self._processing = processing
        self._policy = policy
        self._image_timeout_seconds = image_timeout_seconds
        self._max_image_bytes = max_image_bytes
        self._max_decoded_pixels = max_decoded_pixels
        self._fetches = asyncio.Semaphore(max_fetches)
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="media")

    async def load_image(
        self, source: Source, *, min_pixels: int | None = None, max_pixels: int | None = None
    ) -> Image:
        """Loads a picture; `min_pixels` and `max_pixels` take the place of the checkpoint's bounds.

        Raises:
            MediaError: whatever is wrong with it.
        """
        processing = self._processing.bounded(min_pixels=min_pixels, max_pixels=max_pixels)
        data = await self._image_bytes(source)
        decode = partial(_decode, data, processing, self._max_decoded_pixels)
        return await asyncio.get_running_loop().run_in_executor(self._threads, decode)

    async def close(self) -> None:
        """Ends the threads; what they have begun is awaited, what waits for them is cancelled."""
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)

    async def _image_bytes(self, source: Source) -> bytes:
        match source:
            case DataSource(data=data):
                if len(data) > self._max_image_bytes:
                    message = f"the medium is larger than {self._max_image_bytes} bytes"
                    raise MediaError(MediaErrorCode.TOO_LARGE, message)
                return data
            case UrlSource(url=url):
                async with self._fetches:
                    return await fetch(
                        url,
                        policy=self._policy,
                        max_bytes=self._max_image_bytes,
                        timeout_seconds=self._image_timeout_seconds,
                    )
            case _:
                assert_never(source)


def _decode(data: bytes, processing: ImageProcessing, max_decoded_pixels: int) -> Image:
    return prepare_image(open_image(data, max_pixels=max_decoded_pixels), processing)
