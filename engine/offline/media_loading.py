"""Loads the media of an `LLM`'s batches."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from glimpse.engine.model_config import ModelConfig
from glimpse.engine.offline.fields import InputError
from glimpse.engine.offline.media_policy import MediaRules
from glimpse.engine.text.media_inputs import audio_processing_of, embedding_spec
from glimpse.media.cache.store import MediaStore
from glimpse.media.decoding.decoders import Decoders
from glimpse.media.embeddings.cached import CachedEmbeddings
from glimpse.media.embeddings.embeddings import EmbeddingSpec
from glimpse.media.embeddings.loader import EmbeddingLoader
from glimpse.media.embeddings.torch_files import TorchFileLoader
from glimpse.media.input_loader import MediaInputError, Medium, load_inputs
from glimpse.media.inputs import MediumInput
from glimpse.media.kind import MediaKind
from glimpse.media.loader import MediaLoader
from glimpse.media.processing.audio import AudioProcessing
from glimpse.media.processing.image import ImageProcessing, image_processing
from glimpse.media.processing.video import VideoProcessing, video_processing


@dataclass(frozen=True, slots=True, kw_only=True)
class Processing:
    """How a checkpoint's media are processed."""

    images: ImageProcessing
    videos: VideoProcessing
    audio: AudioProcessing | None
    """None: the model does not support audio."""
    embeddings: EmbeddingSpec


def media_processing(path: Path, model: ModelConfig) -> Processing:
    """Reads the preprocessor files in a checkpoint's folder. Raises ValueError."""
    return Processing(
        images=image_processing(path),
        videos=video_processing(path),
        audio=audio_processing_of(path, model),
        embeddings=embedding_spec(model),
    )


class OfflineMedia:
    """The media of one `LLM`, and their cache."""

    def __init__(self, processing: Processing, rules: MediaRules) -> None:
        """Media are processed and fetched according to `processing` and `rules`."""
        self._images = replace(processing.images, background=rules.background)
        self._videos = processing.videos
        self._audio = processing.audio
        self._embeddings = processing.embeddings
        self._rules = rules
        self._store = MediaStore(max_bytes=rules.max_cache_bytes)

    def load(self, inputs: Sequence[MediumInput]) -> list[Medium]:
        """Loads media and returns them in the same order.

        Raises:
            InputError: one cannot be used.
        """
        if not inputs:
            return []
        # In a separate thread, because the caller's may run an event loop already, as in a notebook.
        with ThreadPoolExecutor(1) as thread:
            try:
                return thread.submit(asyncio.run, self._load(inputs)).result()
            except MediaInputError as failed:
                raise InputError(failed.field, failed.error.message, failed.error.code) from failed

    async def _load(self, inputs: Sequence[MediumInput]) -> list[Medium]:
        loader = self._make_loader()
        reader = EmbeddingLoader(spec=self._embeddings, torch_files=TorchFileLoader())
        embeddings = CachedEmbeddings(loader=reader, store=self._store)
        try:
            with loader.batch() as batch:
                return await load_inputs(inputs, loader=loader, embeddings=embeddings, batch=batch)
        finally:
            await loader.close()
            await embeddings.close()

    def _make_loader(self) -> MediaLoader:
        """Makes a loader for the event loop of one call."""
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
