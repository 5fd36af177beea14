"""What a request says of all its media at once, where a medium's own part does not say it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from glimpse.media.processing.rgb import Colour
from glimpse.media.processing.video_options import find_invalid_option
from glimpse.media.sources.source import CachedSource, FrameSources
from glimpse.server.request import AudioInput, EmbeddingInput, ImageInput, MediumInput, VideoInput
from glimpse.server.rpc.errors import InvalidRequest
from glimpse.v1 import content_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaWishes:
    """Wishes for all media of a request; None: none."""

    min_pixels: int | None
    max_pixels: int | None
    fps: float | None
    num_frames: int | None
    background: Colour | None
    """Of pictures."""


def parse_wishes(reading: content_pb2.MediaIoOptions, processing: content_pb2.MediaProcessorOptions) -> MediaWishes:
    """Raises InvalidRequest where both say which frames are taken, or a colour is none."""
    sampled: content_pb2.MediaProcessorOptions | content_pb2.VideoIoOptions = processing
    if reading.video.HasField("fps") or reading.video.HasField("num_frames"):
        if processing.HasField("fps") or processing.HasField("num_frames"):
            raise InvalidRequest(
                "media_processor_options", "Which frames are taken is said twice.", "conflicting_values"
            )
        sampled = reading.video
    return MediaWishes(
        min_pixels=processing.min_pixels if processing.HasField("min_pixels") else None,
        max_pixels=processing.max_pixels if processing.HasField("max_pixels") else None,
        fps=sampled.fps if sampled.HasField("fps") else None,
        num_frames=sampled.num_frames if sampled.HasField("num_frames") else None,
        background=_parse_colour(reading.image.rgba_background_color),
    )


def _parse_colour(channels: Sequence[int]) -> Colour | None:
    match tuple(channels):
        case ():
            return None
        case red, green, blue if max(red, green, blue) <= 255:
            return red, green, blue
        case _:
            message = "A colour is red, green and blue, each from 0 to 255."
            raise InvalidRequest("media_io_options.image.rgba_background_color", message)


def with_wishes(media: Iterable[MediumInput], wishes: MediaWishes) -> tuple[MediumInput, ...]:
    """The media with the wishes where they have none of their own. Raises InvalidRequest where the two do not fit."""
    return tuple(_with(medium, wishes) for medium in media)


def _with(medium: MediumInput, wishes: MediaWishes) -> MediumInput:
    match medium:
        case ImageInput():
            return _image_with(medium, wishes)
        case VideoInput():
            return _video_with(medium, wishes)
        case AudioInput() | EmbeddingInput():  # of which there is nothing to wish
            return medium
        case _:
            assert_never(medium)


def _image_with(image: ImageInput, wishes: MediaWishes) -> ImageInput:
    wished = replace(
        image,
        min_pixels=wishes.min_pixels if image.min_pixels is None else image.min_pixels,
        max_pixels=wishes.max_pixels if image.max_pixels is None else image.max_pixels,
        background=wishes.background,
    )
    if wished.min_pixels is not None and wished.max_pixels is not None and wished.min_pixels > wished.max_pixels:
        raise InvalidRequest(
            "media_processor_options.min_pixels",
            f"{wished.min_pixels} is more than the most pixels allowed, {wished.max_pixels}.",
        )
    return wished


def _video_with(clip: VideoInput, wishes: MediaWishes) -> VideoInput:
    own = clip.options
    says_which_frames = own.fps is not None or own.num_frames is not None
    options = replace(
        own,
        min_pixels=wishes.min_pixels if own.min_pixels is None else own.min_pixels,
        max_pixels=wishes.max_pixels if own.max_pixels is None else own.max_pixels,
        fps=own.fps if says_which_frames else wishes.fps,
        num_frames=own.num_frames if says_which_frames else wishes.num_frames,
    )
    if isinstance(clip.source, CachedSource):  # what it is made of is known where it is kept
        return replace(clip, options=options)
    wrong = find_invalid_option(options, of_frames=isinstance(clip.source, FrameSources))
    if wrong is not None:
        raise InvalidRequest(f"media_processor_options.{wrong.name}", f"{wrong.name}: {wrong.message}.")
    return replace(clip, options=options)
