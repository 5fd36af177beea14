"""The offline door's media: what callers passed → what the engine takes, all of a batch at once."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import PIL.Image

from engine.given import ClipInput, ImageInput, InputError, Pictures
from engine.text.media_inputs import Medium
from media.clip import Clip, VideoProcessing, video_processing
from media.clip_frames import clip_of_frames, taken_frames
from media.decoders import Decoders
from media.errors import MediaError
from media.image import ImageProcessing, image_processing, prepare_image
from media.load import MediaLoader
from media.policy import FetchPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Processing:
    """How a checkpoint wants its media."""

    images: ImageProcessing
    videos: VideoProcessing


def media_processing(path: Path) -> Processing:
    """Reads the preprocessor files of a checkpoint's folder. Raises ValueError."""
    return Processing(images=image_processing(path), videos=video_processing(path))


def load_media(inputs: Sequence[ImageInput | ClipInput], processing: Processing) -> list[Medium]:
    """Loads media, in their order.

    Raises:
        InputError: one cannot be used.
    """
    if not inputs:
        return []
    # In a thread of its own: the caller's may run an event loop already, as in a notebook.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, _load_all(inputs, processing)).result()


async def _load_all(inputs: Sequence[ImageInput | ClipInput], processing: Processing) -> list[Medium]:
    loader = MediaLoader(
        processing=processing.images,
        video_processing=processing.videos,
        policy=FetchPolicy(),
        decoders=Decoders(isolated=False),
    )
    try:
        return list(await asyncio.gather(*(_load(given, loader, processing) for given in inputs)))
    finally:
        await loader.close()


async def _load(given: ImageInput | ClipInput, loader: MediaLoader, processing: Processing) -> Medium:
    try:
        if isinstance(given, ClipInput):
            return await _load_clip(given, loader, processing.videos)
        if isinstance(given.picture, PIL.Image.Image):
            return await asyncio.to_thread(prepare_image, given.picture, processing.images)
        return await loader.load_image(given.picture, min_pixels=given.min_pixels, max_pixels=given.max_pixels)
    except MediaError as error:
        raise InputError(given.path, error.message) from error


async def _load_clip(given: ClipInput, loader: MediaLoader, processing: VideoProcessing) -> Clip:
    if not isinstance(given.clip, Pictures):
        return await loader.load_clip(given.clip, given.options)
    taken = taken_frames(len(given.clip.frames), given.options, depth=processing.temporal_patch_size)
    return await asyncio.to_thread(clip_of_frames, given.clip.pick(taken), taken, processing, given.options)
