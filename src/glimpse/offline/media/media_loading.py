"""Loads the media of an `LLM`'s batches."""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import PIL.Image

from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.checkpoint.text.media_inputs import embedding_spec, read_media
from glimpse.engine.errors import CheckpointError
from glimpse.media.cache.store import MediaStore
from glimpse.media.containers.still import load_pixels
from glimpse.media.decoding.decoders import Decoders
from glimpse.media.embeddings.loader import EmbeddingLoader
from glimpse.media.errors import MediaError, MediaOptionError
from glimpse.media.input_loader import LoadedInput, MediaInputError, load_inputs
from glimpse.media.inputs import MediumInput
from glimpse.media.loader import MediaLoader
from glimpse.media.sources.decoded import DecodedFrames
from glimpse.media.sources.fetcher import Fetcher
from glimpse.offline.fields import InputError, blaming
from glimpse.offline.media.media_policy import MediaRules


class OfflineMedia:
    """The media of one `LLM`, and their cache."""

    def __init__(self, path: Path, model: ModelConfig, rules: MediaRules) -> None:
        """Reads from a checkpoint's folder how media are processed. `rules` say how they are fetched.

        Raises:
            CheckpointError: the preprocessor's configuration is not supported.
            InputError: a default cannot be honoured.
        """
        try:
            processing = read_media(path, model)
        except ValueError as error:
            raise CheckpointError(str(error)) from error
        with blaming("mm_processor_kwargs"):
            self._processing = processing.with_defaults(rules.defaults)
        self._embeddings = embedding_spec(model, self._processing)
        self._rules = rules
        self._store = MediaStore(max_bytes=rules.max_cache_bytes)

    def load(self, prompts: Sequence[Sequence[MediumInput]]) -> list[list[LoadedInput]]:
        """Loads the media of prompts and returns them in the same order.

        Raises:
            InputError: one cannot be used.
        """
        if not any(prompts):
            return [[] for _ in prompts]
        # In a separate thread, because the caller's may run an event loop already, as in a notebook.
        with ThreadPoolExecutor(1) as thread:
            try:
                return thread.submit(asyncio.run, self._load(prompts)).result()
            except MediaInputError as failed:
                error = failed.error
                message = error.problem if isinstance(error, MediaOptionError) else error.message
                raise InputError(failed.field, message, error.code) from failed

    async def _load(self, prompts: Sequence[Sequence[MediumInput]]) -> list[list[LoadedInput]]:
        loader = self._make_loader()
        embeddings = EmbeddingLoader(spec=self._embeddings, store=self._store)
        try:
            distinct = {id(image): image for prompt in prompts for image in _images(prompt)}
            await asyncio.gather(*(asyncio.to_thread(_load_pixels, image) for image in distinct.values()))
            with loader.batch() as batch:
                return await load_inputs(prompts, loader=loader, embeddings=embeddings, batch=batch)
        finally:
            await loader.close()
            await embeddings.close()

    def _make_loader(self) -> MediaLoader:
        """Makes a loader for the event loop of one call."""
        return MediaLoader(
            processing=self._processing,
            fetcher=Fetcher(self._rules.policy, isolated=False),  # its event loop serves this call alone
            decoders=Decoders(isolated=False),
            local=self._rules.local,
            store=self._store,
            fetch_timeouts=self._rules.fetch_timeouts,
        )


def _load_pixels(image: PIL.Image.Image) -> None:
    """Decodes a caller's image. Pillow does so at the first use, which may not happen in two threads at once."""
    with suppress(MediaError):  # the load of each input raises it, with the input's field
        load_pixels(image)


def _images(inputs: Sequence[MediumInput]) -> Iterator[PIL.Image.Image]:
    for medium in inputs:
        source = medium.source
        each = source.frames if isinstance(source, DecodedFrames) else (source,)
        yield from (image for image in each if isinstance(image, PIL.Image.Image))
