"""Builds the media loader, its caches and its limits from the settings."""

import logging
import sqlite3
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.checkpoint.text.media_inputs import embedding_spec, read_media
from glimpse.engine.errors import CheckpointError
from glimpse.identity.tls import check_authorities
from glimpse.media.cache.byte_count import ByteCount
from glimpse.media.cache.memory_budget import MemoryBudget
from glimpse.media.cache.shared_media import SharedMedia
from glimpse.media.cache.store import MediaStore
from glimpse.media.decoding.decoders import Decoders
from glimpse.media.embeddings.loader import EmbeddingLoader
from glimpse.media.errors import MediaOptionError
from glimpse.media.kind import MediaKind
from glimpse.media.loader import MediaLoader
from glimpse.media.processing.media_processing import MediaProcessing, ProcessingDefaults
from glimpse.media.shared.address import parse_store_url
from glimpse.media.shared.disk import DiskStore
from glimpse.media.shared.keys import Area
from glimpse.media.shared.values import store_errors
from glimpse.media.sources.fetcher import Fetcher
from glimpse.media.sources.local import LocalFiles
from glimpse.media.sources.policy import FetchPolicy
from glimpse.media.sources.uploads import Uploads
from glimpse.server.media_settings import MediaSettings
from glimpse.server.telemetry.metrics import Metrics
from glimpse.usage import UsageError

if TYPE_CHECKING:
    from glimpse.media.shared.store import SharedStore

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaComponents:
    """The media services of one server."""

    loader: MediaLoader
    store: MediaStore
    uploads: Uploads
    responses: Uploads
    """The stored responses of the Responses API."""
    embeddings: EmbeddingLoader
    shared: SharedMedia | None
    """The store that replicas share, if there is one."""
    disk: DiskStore | None
    """What keeps uploads and responses on disk, if there is a folder for it."""

    async def connect(self) -> bool:
        """Connects to the media store. Returns whether there is one and it answers."""
        if self.shared is None:
            return False
        await self.shared.store.start()
        return self.shared.store.is_available

    async def warm(self) -> None:
        """Starts the decoders and connects to the media store, which the first image would otherwise wait for."""
        await self.loader.warm()
        await self.connect()

    def on_purge(self, listener: Callable[[str, str], None]) -> None:
        """Calls `listener` as `SharedStore.on_purge` does, if there is a media store."""
        if self.shared is not None:
            self.shared.store.on_purge(listener)

    async def purge(self, prefix: str) -> bool:
        """Removes all media of the namespaces that begin with `prefix`, from the media store and all its servers too.

        Returns whether there is a media store, so that all its servers are purged.

        Raises:
            MediaError: STORE_UNAVAILABLE: this server's memory is purged, the store is not.
        """
        self.store.purge(prefix)
        self.uploads.purge(prefix)
        self.responses.purge(prefix)
        if self.disk is not None:
            with store_errors("files in the state folder are not purged; try again"):
                await self.disk.purge(prefix)
        if self.shared is not None:
            with store_errors("this server alone is purged; try again"):
                await self.shared.store.purge(prefix)
        return self.shared is not None

    async def close(self) -> None:
        """Stops the fetcher and decoder processes and closes the connections."""
        await self.loader.close()
        await self.embeddings.close()
        if self.shared is not None:
            await self.shared.close()
        if self.disk is not None:
            await self.disk.close()


@contextmanager
def state_folder_errors(folder: Path | None) -> Generator[None]:
    """Turns errors about the files of the state folder within the block into UsageError."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        message = f"expected a folder whose files this user can write, got {str(folder)!r}: {reason}"
        raise UsageError(
            f"'--state-folder': {message}; change its owner or mode, take a damaged file away, or name another folder"
        ) from error


def build_media(
    settings: MediaSettings,
    checkpoint: Path,
    model: ModelConfig,
    metrics: Metrics,
    *,
    on_store_change: Callable[[bool], None],
    in_flight: ByteCount | None = None,
    num_front_ends: int = 1,
) -> MediaComponents:
    """Builds them.

    Args:
        on_store_change: Told whether the media store is available, first and whenever that changes.
        in_flight: Counts what the media of running requests occupy. Default: those of this process.
        num_front_ends: Front ends that share the processors and the memory of caches.

    Raises:
        CheckpointError: the checkpoint's preprocessor configuration is not supported, or does not allow an option.
        IdentityConfigError: the file of `media_store_ca` has no certificates.
    """
    memory_budget = MemoryBudget(
        max_bytes=settings.media_in_flight_bytes,
        max_request_bytes=settings.max_request_media_bytes,
        count=in_flight,
    )
    shared = _shared_media(settings, memory_budget, metrics, on_store_change)
    store = MediaStore(max_bytes=settings.media_cache_bytes // num_front_ends, shared=shared)
    disk = _disk(settings)
    uploads, responses = _uploads(settings, memory_budget, disk if shared is None else shared.store, num_front_ends)
    if shared is not None:
        for each in (uploads, responses):
            shared.store.on_purge(partial(_purge, each))
            shared.store.on_reconnect(each.restore)
    metrics.watch_media("cached", lambda: store.num_bytes)
    metrics.watch_media("uploaded", lambda: uploads.num_bytes)
    metrics.watch_media("responses", lambda: responses.num_bytes)
    metrics.watch_media("in_flight", lambda: memory_budget.num_bytes)
    processing = _processing(settings, checkpoint, model)
    loader = MediaLoader(
        processing=processing,
        fetcher=Fetcher(_policy(settings)),
        local=LocalFiles(settings.allowed_local_media_path) if settings.allowed_local_media_path else None,
        decoders=Decoders(max_decoded_pixels=settings.max_image_pixels, num_sharing=num_front_ends),
        store=store,
        uploads=uploads,
        stored=responses,
        memory_budget=memory_budget,
        fetch_timeouts={
            MediaKind.IMAGE: settings.image_fetch_timeout,
            MediaKind.VIDEO: settings.video_fetch_timeout,
            MediaKind.AUDIO: settings.audio_fetch_timeout,
            MediaKind.DOCUMENT: settings.document_fetch_timeout,
        },
        max_file_bytes={
            MediaKind.IMAGE: settings.max_image_file_bytes,
            MediaKind.VIDEO: settings.max_video_file_bytes,
            MediaKind.AUDIO: settings.max_audio_file_bytes,
            MediaKind.DOCUMENT: settings.max_document_file_bytes,
        },
    )
    embeddings = EmbeddingLoader(spec=embedding_spec(model, processing), store=store)
    return MediaComponents(
        loader=loader,
        store=store,
        uploads=uploads,
        responses=responses,
        embeddings=embeddings,
        shared=shared,
        disk=disk,
    )


def _disk(settings: MediaSettings) -> DiskStore | None:
    if settings.state_folder is None:
        return None
    budgets = {Area.UPLOADS: settings.upload_cache_bytes, Area.RESPONSES: settings.response_store_bytes}
    with state_folder_errors(settings.state_folder):
        return DiskStore(settings.state_folder, budgets=budgets)


def _uploads(
    settings: MediaSettings,
    memory_budget: MemoryBudget,
    store: "SharedStore | DiskStore | None",
    num_front_ends: int,
) -> list[Uploads]:
    """Returns what stores uploads, and what stores responses."""
    return [
        Uploads(
            max_bytes=max_bytes,
            ttl_seconds=ttl_seconds,
            max_file_bytes=settings.max_video_file_bytes,
            memory_budget=memory_budget,
            shared=store,
            max_copied_bytes=max_bytes // num_front_ends,
            area=area,
        )
        for area, max_bytes, ttl_seconds in (
            (Area.UPLOADS, settings.upload_cache_bytes, settings.upload_ttl),
            (Area.RESPONSES, settings.response_store_bytes, settings.response_ttl),
        )
    ]


def _purge(kept: Uploads, prefix: str, _name: str) -> None:
    kept.purge(prefix)


def _processing(settings: MediaSettings, checkpoint: Path, model: ModelConfig) -> MediaProcessing:
    try:
        processing = read_media(checkpoint, model)
    except ValueError as error:
        raise CheckpointError(str(error)) from error
    images, max_pixels = processing.images, settings.mm_processor_kwargs.max_pixels
    if images is not None and images.checkpoint_max_pixels is not None and max_pixels is None:
        _logger.info(
            "the checkpoint allows images of %d pixels; they have fewer unless requests set max_pixels, or"
            """ --mm-processor-kwargs '{"max_pixels": "checkpoint"}' is given""",
            images.checkpoint_max_pixels,
        )
    try:
        return processing.with_defaults(_processing_defaults(settings))
    except MediaOptionError as error:
        raise CheckpointError(f"'--mm-processor-kwargs.{error.name}': {error.problem}") from error


def _processing_defaults(settings: MediaSettings) -> ProcessingDefaults:
    own = settings.mm_processor_kwargs
    sampling = own if own.is_set else settings.media_io_kwargs.video
    return ProcessingDefaults(
        background=settings.media_io_kwargs.image.rgba_background_color,
        fast_jpeg=settings.fast_jpeg,
        min_pixels=own.min_pixels,
        max_pixels=own.max_pixels,
        fps=sampling.fps,
        num_frames=sampling.num_frames,
        max_seconds=settings.max_video_seconds,
    )


def _shared_media(
    settings: MediaSettings, memory_budget: MemoryBudget, metrics: Metrics, on_change: Callable[[bool], None]
) -> SharedMedia | None:
    if settings.media_store is None:
        return None
    if settings.media_store_ca is not None:
        check_authorities("--media-store-ca", settings.media_store_ca)
    from glimpse.media.shared.store import SharedStore  # noqa: PLC0415 - the Redis client takes 60 ms to import

    def changed(is_available: bool) -> None:
        metrics.set_media_store_available(is_available)
        on_change(is_available)

    metrics.add_media_store()
    changed(False)
    store = SharedStore(
        parse_store_url(settings.media_store, settings.media_store_ca),
        prefix=settings.media_store_prefix,
        budgets={
            Area.MEDIA: settings.media_cache_bytes,
            Area.UPLOADS: settings.upload_cache_bytes,
            Area.RESPONSES: settings.response_store_bytes,
        },
        observe=metrics.media_store_used,
        on_change=changed,
    )
    return SharedMedia(store, memory_budget)


def _policy(settings: MediaSettings) -> FetchPolicy:
    return FetchPolicy(
        enabled=settings.media_egress == "on",
        allowed_domains=frozenset(settings.allowed_media_domains) or None,
        allowed_networks=tuple(map(str, settings.allowed_media_networks)),
        allowed_ports=frozenset(settings.allowed_media_ports),
    )
