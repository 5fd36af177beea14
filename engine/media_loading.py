"""The offline door's media: what callers passed → what the engine takes, all of a batch at once."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

import PIL.Image

from engine.config import ModelConfig
from engine.given import ClipInput, ImageInput, InputError, Pictures
from engine.given_embeddings import EmbeddingInput, MediumInput
from engine.given_sounds import Samples, SoundInput
from engine.text.media_inputs import Medium, embedding_form, sound_processing
from media.audio import AudioProcessing, Sound, sound_of_array
from media.clip import Clip, VideoProcessing, video_processing
from media.clip_frames import clip_of_frames, taken_frames
from media.decoders import Decoders
from media.embeddings import EmbeddingForm, make_embedding
from media.errors import MediaError
from media.image import Image, ImageProcessing, image_processing, prepare_image
from media.load import MediaLoader
from media.policy import FetchPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Processing:
    """How a checkpoint wants its media."""

    images: ImageProcessing
    videos: VideoProcessing
    sounds: AudioProcessing | None
    """None: the model does not hear."""
    embeddings: EmbeddingForm


def media_processing(path: Path, model: ModelConfig) -> Processing:
    """Reads the preprocessor files of a checkpoint's folder. Raises ValueError."""
    return Processing(
        images=image_processing(path),
        videos=video_processing(path),
        sounds=sound_processing(path, model),
        embeddings=embedding_form(model),
    )


def load_media(inputs: Sequence[MediumInput], processing: Processing) -> list[Medium]:
    """Loads media, in their order.

    Raises:
        InputError: one cannot be used.
    """
    if not inputs:
        return []
    # In a thread of its own: the caller's may run an event loop already, as in a notebook.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, _load_all(inputs, processing)).result()


async def _load_all(inputs: Sequence[MediumInput], processing: Processing) -> list[Medium]:
    loader = MediaLoader(
        processing=processing.images,
        video_processing=processing.videos,
        audio_processing=processing.sounds,
        policy=FetchPolicy(),
        decoders=Decoders(isolated=False),
    )
    try:
        return list(await asyncio.gather(*(_load(given, loader, processing) for given in inputs)))
    finally:
        await loader.close()


async def _load(given: MediumInput, loader: MediaLoader, processing: Processing) -> Medium:
    try:
        match given:
            case ImageInput():
                return await _load_image(given, loader, processing.images)
            case ClipInput():
                return await _load_clip(given, loader, processing.videos)
            case SoundInput():
                return await _load_sound(given, loader, processing.sounds)
            case EmbeddingInput(kind=kind, embeddings=tensor, grid_thw=grid):
                return await asyncio.to_thread(make_embedding, kind, tensor, grid, processing.embeddings)
            case _:
                assert_never(given)
    except MediaError as error:
        raise InputError(given.path, error.message) from error


async def _load_image(given: ImageInput, loader: MediaLoader, processing: ImageProcessing) -> Image:
    if isinstance(given.picture, PIL.Image.Image):
        return await asyncio.to_thread(prepare_image, given.picture, processing)
    return await loader.load_image(given.picture, min_pixels=given.min_pixels, max_pixels=given.max_pixels)


async def _load_clip(given: ClipInput, loader: MediaLoader, processing: VideoProcessing) -> Clip:
    if not isinstance(given.clip, Pictures):
        return await loader.load_clip(given.clip, given.options)
    taken = taken_frames(len(given.clip.frames), given.options, depth=processing.temporal_patch_size)
    return await asyncio.to_thread(clip_of_frames, given.clip.pick(taken), taken, processing, given.options)


async def _load_sound(given: SoundInput, loader: MediaLoader, processing: AudioProcessing | None) -> Sound:
    if processing is None:
        raise InputError(given.path, "the model takes no audio")
    if not isinstance(given.sound, Samples):
        return await loader.load_sound(given.sound)
    return await asyncio.to_thread(sound_of_array, given.sound.array, given.sound.rate, processing)
