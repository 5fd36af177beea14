"""What a request's media were to the model: their size, their tokens, and what caches held of them."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import assert_never

from glimpse.engine.protocol.media import Embeddings, MediaSpan
from glimpse.engine.protocol.messages import MediaInput
from glimpse.media.cache.request_media import MediumOrigin
from glimpse.media.embeddings.embeddings import Embedding
from glimpse.media.kind import MediaKind
from glimpse.media.loader import MediaLoader
from glimpse.media.medium import Medium
from glimpse.media.processing.audio import Audio
from glimpse.media.processing.image import Image
from glimpse.media.processing.sizing.placement import ImagePlacement
from glimpse.media.processing.video import Video


class CacheTier(Enum):
    """The last stage of a medium's processing whose result was cached."""

    NONE = auto()
    FILE = auto()
    DECODED = auto()
    """The decoded medium, or embeddings in its place."""
    ENCODER = auto()
    """The encoder's output."""
    PREFIX = auto()
    """Tokens of the medium, as part of a cached prefix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptMedium:
    """A medium of a prompt, without its content: its size is that which the model sees, None where its kind has none
    such."""

    span: MediaSpan
    origin: MediumOrigin
    is_embedding: bool
    """Whether the medium is an encoder output, so that the engine's own encoder has nothing to do."""
    width: int | None = None
    """Pixels, after resizing: of an image's largest tile, or of a video's frames."""
    height: int | None = None
    num_tiles: int | None = None
    """Tiles of an image, its overview included."""
    placement: ImagePlacement | None = None
    """Where the pixels of an image are in its file."""
    num_frames: int | None = None
    """Frames of a video, as the model sees it."""
    fps: float | None = None
    """The sampling rate; None if frames were not sampled at a rate."""
    frame_seconds: tuple[float, ...] = ()
    """The time of each frame in the video; empty if unknown."""
    duration_seconds: float | None = None
    """Length of audio, without what the model does not hear."""


def prompt_medium(medium: Medium, sent: MediaInput, origin: MediumOrigin, loader: MediaLoader) -> PromptMedium:
    """Describes a medium that `loader` has loaded, and that is `sent` to the engine."""
    is_embedding = isinstance(sent.content, Embeddings)
    describe = partial(PromptMedium, span=sent.span, origin=origin, is_embedding=is_embedding)
    match medium:
        case Image():
            num_tiles, (height, width) = loader.tiles(medium)
            return describe(width=width, height=height, num_tiles=num_tiles, placement=medium.placement)
        case Video():
            num_frames, height, width, _ = medium.pixels.shape
            return describe(
                width=width,
                height=height,
                num_frames=num_frames,
                fps=medium.fps,
                frame_seconds=medium.frame_seconds,
            )
        case Audio():
            return describe(duration_seconds=medium.duration_seconds)
        case Embedding():
            return describe()
        case _:
            assert_never(medium)


def media_tokens(media: Iterable[PromptMedium]) -> Counter[MediaKind]:
    """Returns the number of tokens that stand for media, by kind."""
    counts = Counter[MediaKind]()
    for medium in media:
        counts[medium.span.kind] += medium.span.num_tokens
    return counts


def cache_tier(medium: PromptMedium, num_cached_tokens: int, *, is_encoded: bool) -> CacheTier:
    """Returns what caches held of a medium. `num_cached_tokens`: tokens of the prompt that the prefix cache held."""
    offset, length = medium.span.runs[-1]
    if not is_encoded:
        if medium.span.start + offset + length <= num_cached_tokens:
            return CacheTier.PREFIX
        if not medium.is_embedding:
            return CacheTier.ENCODER
    if medium.origin.was_decoded:
        return CacheTier.DECODED
    return CacheTier.FILE if medium.origin.had_files else CacheTier.NONE
