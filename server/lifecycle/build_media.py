"""Builds the media loader, its caches and its limits from the settings."""

from dataclasses import dataclass
from pathlib import Path

from glimpse.engine.errors import CheckpointError
from glimpse.engine.model_config.model import ModelConfig
from glimpse.engine.text.media_inputs import embedding_spec, read_media
from glimpse.media.cache.memory_budget import MemoryBudget
from glimpse.media.cache.store import MediaStore
from glimpse.media.decoding.decoders import Decoders
from glimpse.media.embeddings.loader import EmbeddingLoader
from glimpse.media.kind import MediaKind
from glimpse.media.loader import MediaLoader
from glimpse.media.sources.local import LocalFiles
from glimpse.media.sources.policy import FetchPolicy
from glimpse.media.sources.uploads import Uploads
from glimpse.server.settings import MediaSettings
from glimpse.server.telemetry.metrics import Metrics

MAX_REQUEST_BYTES = 1 << 30
"""Memory limit for the media of one request: files and decoded pixels together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaComponents:
    """The media services of one server."""

    loader: MediaLoader
    uploads: Uploads
    embeddings: EmbeddingLoader

    async def warm(self) -> None:
        """Starts the decoders that the first image would otherwise wait for."""
        await self.loader.warm()

    async def close(self) -> None:
        """Stops the decoder processes."""
        await self.loader.close()
        await self.embeddings.close()


def build_media(settings: MediaSettings, checkpoint: Path, model: ModelConfig, metrics: Metrics) -> MediaComponents:
    """Builds them. Raises CheckpointError: the checkpoint's preprocessor configuration is not supported."""
    memory_budget = MemoryBudget(max_bytes=settings.media_in_flight_bytes, max_request_bytes=MAX_REQUEST_BYTES)
    store = MediaStore(max_bytes=settings.media_cache_bytes)
    uploads = Uploads(
        max_bytes=settings.upload_cache_bytes, ttl_seconds=settings.upload_ttl, memory_budget=memory_budget
    )
    metrics.watch_media("cached", lambda: store.num_bytes)
    metrics.watch_media("uploaded", lambda: uploads.num_bytes)
    metrics.watch_media("in_flight", lambda: memory_budget.num_bytes)
    try:
        processing = read_media(checkpoint, model)
    except ValueError as error:
        raise CheckpointError(str(error)) from error
    loader = MediaLoader(
        processing=processing.with_image_defaults(
            background=settings.media_io_kwargs.image.rgba_background_color, fast_jpeg=settings.fast_jpeg
        ),
        policy=_policy(settings),
        local=LocalFiles(settings.allowed_local_media_path) if settings.allowed_local_media_path else None,
        decoders=Decoders(),
        store=store,
        uploads=uploads,
        memory_budget=memory_budget,
        fetch_timeouts={
            MediaKind.IMAGE: settings.image_fetch_timeout,
            MediaKind.VIDEO: settings.video_fetch_timeout,
            MediaKind.AUDIO: settings.audio_fetch_timeout,
        },
    )
    embeddings = EmbeddingLoader(spec=embedding_spec(model), store=store)
    return MediaComponents(loader=loader, uploads=uploads, embeddings=embeddings)


def _policy(settings: MediaSettings) -> FetchPolicy:
    return FetchPolicy(
        enabled=settings.media_egress == "on",
        allowed_domains=frozenset(settings.allowed_media_domains) or None,
        allowed_networks=settings.allowed_media_networks,
        allowed_ports=frozenset(settings.allowed_media_ports),
    )
