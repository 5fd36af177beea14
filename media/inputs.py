"""The media of a request: parsed and typed, but not loaded yet.

The server and the offline API both parse requests into these values; `glimpse.media.input_loader` loads them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias, TypeVar, assert_never

import PIL.Image

from glimpse.media.embeddings.tensor_file import TensorSource
from glimpse.media.kind import MediaKind
from glimpse.media.processing.document import PageRange
from glimpse.media.processing.rgb import Colour
from glimpse.media.processing.sizing.recipe import Detail, check_image_bounds
from glimpse.media.processing.video_options import VideoOptions, check_options
from glimpse.media.sources.decoded import AudioSamples, DecodedFrames
from glimpse.media.sources.files import DocumentPage
from glimpse.media.sources.source import (
    AudioOrCached,
    CachedSource,
    DocumentOrCached,
    FrameSources,
    ImageOrCached,
    VideoOrCached,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageInput:
    """An image of a request."""

    kind: ClassVar = MediaKind.IMAGE
    source: ImageOrCached | DocumentPage | PIL.Image.Image
    field: str
    """Path in the request of the field at fault if the image cannot be used."""
    options_field: str | None = None
    """Path in the request of the message that has the options below; None: a wrong option is blamed on `field`."""
    uuid: str | None = None
    """The client's name for the image, under which it is cached."""
    min_pixels: int | None = None
    """None: the checkpoint's bound."""
    max_pixels: int | None = None
    """None: the checkpoint's bound."""
    detail: Detail = Detail.AUTO
    background: Colour | None = None
    """The colour behind transparent pixels; None: the loader's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoInput:
    """A video of a request."""

    kind: ClassVar = MediaKind.VIDEO
    source: VideoOrCached | DecodedFrames
    options: VideoOptions
    field: str
    """See `ImageInput`."""
    options_field: str | None = None
    """See `ImageInput`."""
    uuid: str | None = None
    """See `ImageInput`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioInput:
    """An audio input of a request."""

    kind: ClassVar = MediaKind.AUDIO
    source: AudioOrCached | AudioSamples
    field: str
    """See `ImageInput`."""
    uuid: str | None = None
    """See `ImageInput`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingInput:
    """Embeddings that replace a medium, not checked yet against the model."""

    kind: MediaKind
    """Kind of the medium that they replace."""
    source: TensorSource | CachedSource
    grid_thw: TensorSource | None
    """The medium's patches in time, height and width, if given."""
    size: TensorSource | None = None
    """The image's width and height in pixels, if given."""
    field: str
    """See `ImageInput`."""
    uuid: str | None = None
    """See `ImageInput`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentInput:
    """A document of a request. The model reads images of its pages, their text layers, or each image and its text."""

    kind: ClassVar = MediaKind.DOCUMENT
    source: DocumentOrCached
    field: str
    """See `ImageInput`."""
    options_field: str
    """See `ImageInput`."""
    uuid: str | None = None
    """See `ImageInput`."""
    pages: PageRange
    with_images: bool
    with_texts: bool
    max_images: int
    """Most images of the prompt, pages included."""
    dpi: int | None = None
    """Resolution at which pages are drawn; None: the reader's."""
    min_pixels: int | None = None
    """See `ImageInput`, for each page. So are the next three."""
    max_pixels: int | None = None
    detail: Detail = Detail.AUTO
    background: Colour | None = None


MediumInput: TypeAlias = ImageInput | VideoInput | AudioInput | EmbeddingInput | DocumentInput
_ImageT = TypeVar("_ImageT", ImageInput, DocumentInput)


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaDefaults:
    """Options for all media of a request that do not set their own; None: no default."""

    min_pixels: int | None = None
    """Least pixels of images and frames."""
    max_pixels: int | None = None
    """Most pixels of images and frames."""
    fps: float | None = None
    """Rate of videos that set neither `fps` nor `num_frames`."""
    num_frames: int | None = None
    """Rate of videos that set neither `fps` nor `num_frames`."""
    background: Colour | None = None
    field: str | None = None
    """Path of the options in the request, for errors."""


def is_by_reference(medium: MediumInput) -> bool:
    """Returns whether the input is only the uuid of a cached medium."""
    return isinstance(medium.source, CachedSource)


def is_made_of_frames(source: object) -> bool:
    """Returns whether a video's source is a list of frames, not a file."""
    return isinstance(source, FrameSources | DecodedFrames)


def with_defaults(media: Iterable[MediumInput], defaults: MediaDefaults) -> tuple[MediumInput, ...]:
    """Returns the media with the defaults filled in.

    Raises:
        MediaOptionError: a medium's own options and the defaults contradict each other.
    """
    return tuple(_with_defaults(medium, defaults) for medium in media)


def _with_defaults(medium: MediumInput, defaults: MediaDefaults) -> MediumInput:
    match medium:
        case ImageInput():
            return _image_with_defaults(medium, defaults)
        case DocumentInput():
            return _image_with_defaults(medium, defaults)
        case VideoInput():
            return _video_with_defaults(medium, defaults)
        case AudioInput() | EmbeddingInput():  # they have no options
            return medium
        case _:
            assert_never(medium)


def _image_with_defaults(image: _ImageT, defaults: MediaDefaults) -> _ImageT:
    min_pixels = defaults.min_pixels if image.min_pixels is None else image.min_pixels
    max_pixels = defaults.max_pixels if image.max_pixels is None else image.max_pixels
    is_own = (min_pixels, max_pixels) == (image.min_pixels, image.max_pixels)
    filled = replace(
        image,
        min_pixels=min_pixels,
        max_pixels=max_pixels,
        options_field=image.options_field if is_own else defaults.field,
        background=defaults.background if image.background is None else image.background,
    )
    check_image_bounds(filled.min_pixels, filled.max_pixels, filled.detail)
    return filled


def _video_with_defaults(video: VideoInput, defaults: MediaDefaults) -> VideoInput:
    own = video.options
    is_sampled = own.fps is not None or own.num_frames is not None
    options = replace(
        own,
        min_pixels=defaults.min_pixels if own.min_pixels is None else own.min_pixels,
        max_pixels=defaults.max_pixels if own.max_pixels is None else own.max_pixels,
        fps=own.fps if is_sampled else defaults.fps,
        num_frames=own.num_frames if is_sampled else defaults.num_frames,
    )
    if not is_by_reference(video):  # else the loader checks, once it knows whether a file or frames are cached
        check_options(options, of_frames=is_made_of_frames(video.source))
    return replace(video, options=options, options_field=video.options_field if options == own else defaults.field)
