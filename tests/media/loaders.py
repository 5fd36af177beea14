"""Media loaders for tests, and their processing and policy."""

from dataclasses import replace
from typing import Any

from glimpse.media.cache.memory_budget import MemoryBudget, MemoryReservation, MemoryShare
from glimpse.media.cache.request_media import MediaUsage, RequestMedia
from glimpse.media.cache.store import MediaStore
from glimpse.media.decoding.decoders import Decoders
from glimpse.media.embeddings.embeddings import EmbeddingSpec
from glimpse.media.embeddings.loader import EmbeddingLoader
from glimpse.media.inputs import DocumentInput
from glimpse.media.loader import MediaLoader
from glimpse.media.processing.document import PageRange
from glimpse.media.processing.image import ImageProcessing
from glimpse.media.processing.media_processing import MediaProcessing
from glimpse.media.processing.sizing.smart_frames import SmartFrames
from glimpse.media.processing.sizing.smart_resize import SmartResize
from glimpse.media.processing.video import VideoProcessing
from glimpse.media.sources.fetcher import Fetcher
from glimpse.media.sources.policy import FetchPolicy
from glimpse.media.sources.source import DataSource

PROCESSING = ImageProcessing(
    sizing=SmartResize(patch_size=14, merge_size=2, temporal_patch_size=2, min_pixels=3136, max_pixels=64 * 28 * 28)
)


VIDEO_PROCESSING = VideoProcessing(
    sizing=SmartFrames(
        patch_size=14,
        merge_size=2,
        temporal_patch_size=2,
        min_pixels=28 * 28,
        max_pixels=64 * 28 * 28,
        total_pixels=1024 * 28 * 28,
    )
)
MEDIA_PROCESSING = MediaProcessing(images=PROCESSING, videos=VIDEO_PROCESSING)

FETCHER = Fetcher(FetchPolicy(allowed_networks=("127.0.0.1/32",), allowed_ports=None), isolated=False)
"""Fetches in the test's event loop."""


NO_EMBEDDINGS = EmbeddingLoader(spec=EmbeddingSpec(kinds=frozenset(), hidden_size=8), store=MediaStore(max_bytes=0))


def make_loader(processing: ImageProcessing = PROCESSING, **limits: Any) -> MediaLoader:
    return MediaLoader(
        processing=replace(MEDIA_PROCESSING, images=processing),
        fetcher=FETCHER,
        decoders=Decoders(isolated=False),
        **limits,
    )


def document_input(data: bytes = b"", first: int = 1, last: int | None = None, **options: Any) -> DocumentInput:
    """Returns a document of a request for images of its pages."""
    defaults: dict[str, Any] = {
        "source": DataSource(data=data),
        "field": "source",
        "options_field": "document",
        "with_images": True,
        "with_texts": False,
        "max_images": 16,
    }
    return DocumentInput(pages=PageRange(first=first, last=last), **(defaults | options))


def request_media(namespace: str = "") -> RequestMedia:
    """Returns a request's media with unlimited memory."""
    reservation = MemoryReservation(MemoryBudget(), MemoryShare())
    return RequestMedia(namespace=namespace, reservation=reservation, usage=MediaUsage())
