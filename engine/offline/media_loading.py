"""The offline door's media: what callers passed → what the engine takes, all of a batch at once."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import assert_never

import PIL.Image

from glimpse.engine.model_config import ModelConfig
from glimpse.engine.offline.audio_inputs import AudioInput, Samples
from glimpse.engine.offline.embedding_inputs import EmbeddingInput, MediumInput, is_left_out
from glimpse.engine.offline.media_policy import MediaRules
from glimpse.engine.offline.visual_inputs import ImageInput, InputError, Pictures, VideoInput
from glimpse.engine.text.media_inputs import Medium, embedding_spec, sound_processing
from glimpse.media.cache.request_media import Batch
from glimpse.media.cache.store import MediaStore
from glimpse.media.decoding.decoders import Decoders
from glimpse.media.decoding.video_frames import sample_frame_indices, video_from_images
from glimpse.media.embeddings.cached import CachedEmbeddings
from glimpse.media.embeddings.embeddings import EmbeddingSpec
from glimpse.media.embeddings.loader import EmbeddingLoader
from glimpse.media.embeddings.torch_files import TorchFileLoader
from glimpse.media.errors import MediaError
from glimpse.media.kind import MediaKind
from glimpse.media.loader import MediaLoader
from glimpse.media.processing.audio import Audio, AudioProcessing, audio_from_array
from glimpse.media.processing.image import Image, ImageProcessing, image_processing, prepare_image
from glimpse.media.processing.video import Video, VideoProcessing, video_processing


@dataclass(frozen=True, slots=True, kw_only=True)
class Processing:
    """How a checkpoint wants its media."""

    images: ImageProcessing
    videos: VideoProcessing
    sounds: AudioProcessing | None
    """None: the model does not hear."""
    embeddings: EmbeddingSpec


def media_processing(path: Path, model: ModelConfig) -> Processing:
    """Reads the preprocessor files of a checkpoint's folder. Raises ValueError."""
    return Processing(
        images=image_processing(path),
        videos=video_processing(path),
        sounds=sound_processing(path, model),
        embeddings=embedding_spec(model),
    )


class OfflineMedia:
    """The media of one `LLM`, and what is kept of them between its calls."""

    def __init__(self, processing: Processing, rules: MediaRules) -> None:
        """Media are read as `processing` and `rules` say."""
        self._images = replace(processing.images, background=rules.background)
        self._videos = processing.videos
        self._audio = processing.sounds
        self._embeddings = processing.embeddings
        self._rules = rules
        self._store = MediaStore(max_bytes=rules.max_cache_bytes)

    def load(self, inputs: Sequence[MediumInput]) -> list[Medium]:
        """Loads media, in their order.

        Raises:
            InputError: one cannot be used.
        """
        if not inputs:
            return []
        # In a thread of its own: the caller's may run an event loop already, as in a notebook.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, self._load_all(inputs)).result()

    async def _load_all(self, inputs: Sequence[MediumInput]) -> list[Medium]:
        loader = self._make_loader()
        reader = EmbeddingLoader(form=self._embeddings, torch_files=TorchFileLoader())
        embeddings = CachedEmbeddings(loader=reader, store=self._store)
        try:
            with loader.batch() as batch:
                one = partial(self._load, loader=loader, embeddings=embeddings, batch=batch)
                # What is left out may have been given in this very call.
                given = iter(await asyncio.gather(*(one(each) for each in inputs if not is_left_out(each))))
                left_out = iter(await asyncio.gather(*(one(each) for each in inputs if is_left_out(each))))
                return [next(left_out if is_left_out(each) else given) for each in inputs]
        finally:
            await loader.close()
            await embeddings.close()

    def _make_loader(self) -> MediaLoader:
        """One for the event loop of a call."""
        timeouts = self._rules.fetch_timeouts
        return MediaLoader(
            processing=self._images,
            video_processing=self._videos,
            audio_processing=self._audio,
            policy=self._rules.policy,
            decoders=Decoders(isolated=False),
            local=self._rules.local,
            store=self._store,
            image_timeout_seconds=timeouts[MediaKind.IMAGE],
            video_timeout_seconds=timeouts[MediaKind.VIDEO],
            audio_timeout_seconds=timeouts[MediaKind.AUDIO],
        )

    async def _load(
        self, given: MediumInput, *, loader: MediaLoader, embeddings: CachedEmbeddings, batch: Batch
    ) -> Medium:
        try:
            match given:
                case ImageInput():
                    return await self._load_image(given, loader, batch)
                case VideoInput():
                    return await self._load_video(given, loader, batch)
                case AudioInput():
                    return await self._load_audio(given, loader, batch)
                case EmbeddingInput(kind=kind, embeddings=tensor, grid_thw=grid, uuid=uuid):
                    return await embeddings.load(kind, tensor, grid, batch=batch, uuid=uuid)
                case _:
                    assert_never(given)
        except MediaError as error:
            raise InputError(given.path, error.message, error.code) from error

    async def _load_image(self, given: ImageInput, loader: MediaLoader, batch: Batch) -> Image:
        picture, uuid = given.picture, given.uuid
        if not isinstance(picture, PIL.Image.Image):
            return await loader.load_image(
                picture, batch=batch, uuid=uuid, min_pixels=given.min_pixels, max_pixels=given.max_pixels
            )
        processing = self._images.with_options(min_pixels=given.min_pixels, max_pixels=given.max_pixels)
        image = await asyncio.to_thread(prepare_image, picture, processing)
        if uuid is not None:
            loader.cache_image(image, processing, uuid, batch=batch)
        return image

    async def _load_video(self, given: VideoInput, loader: MediaLoader, batch: Batch) -> Video:
        source, options, uuid = given.clip, given.options, given.uuid
        if not isinstance(source, Pictures):
            return await loader.load_video(source, options, batch=batch, uuid=uuid)
        taken = sample_frame_indices(len(source.frames), options, depth=self._videos.temporal_patch_size)
        clip = await asyncio.to_thread(video_from_images, source.pick(taken), taken, self._videos, options)
        if uuid is not None:
            loader.cache_video(clip, taken, len(source.frames), options, uuid, batch=batch)
        return clip

    async def _load_audio(self, given: AudioInput, loader: MediaLoader, batch: Batch) -> Audio:
        if self._audio is None:
            raise InputError(given.path, "the model takes no audio")
        sound, uuid = given.sound, given.uuid
        if not isinstance(sound, Samples):
            return await loader.load_audio(sound, batch=batch, uuid=uuid)
        heard = await asyncio.to_thread(audio_from_array, sound.array, sound.rate, self._audio)
        if uuid is not None:
            loader.cache_audio(heard, uuid, batch=batch)
        return heard
