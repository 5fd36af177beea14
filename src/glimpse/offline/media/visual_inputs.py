"""Parses the images and videos that callers of `LLM` pass. Decodes nothing.

An image or video that was passed before under a uuid may be None. Arrays and tensors have their channels last or first.
Those of uint8, channels last, are used without a copy. Floats are from 0 to 255, as `process_vision_info` of
qwen-vl-utils makes them, or from 0 to 1. A torch tensor is recognized by its `__array__` method.
"""

import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import PIL.Image

from glimpse.media.containers.animation import is_animated
from glimpse.media.containers.sniff import spelling
from glimpse.media.inputs import ImageInput, VideoInput, is_made_of_frames
from glimpse.media.processing.sizing.recipe import check_image_bounds
from glimpse.media.processing.video_options import VideoOptions, check_options
from glimpse.media.sources.decoded import DecodedFrames
from glimpse.media.sources.source import DataSource, FrameSources, VideoSource, parse_video_text
from glimpse.offline.fields import (
    InputError,
    blaming,
    by_reference,
    known_fields,
    parse_number,
    parse_source,
    parse_url,
)

_SPELLINGS = {"min_pixel": "min_pixels", "max_pixel": "max_pixels"}
"""DashInfer-VLM's names of options."""
IMAGE_OPTIONS = ("min_pixels", "max_pixels", *_SPELLINGS, "detail")
_VIDEO_OPTIONS = tuple(field.name for field in fields(VideoOptions))
VIDEO_OPTIONS = (*_VIDEO_OPTIONS, *_SPELLINGS)
METADATA = ("fps", "frames_indices", "total_num_frames", "duration", "width", "height", "video_backend")
"""Metadata of frames, named as in qwen-vl-utils and transformers. `fps` and `frames_indices` say when each frame is;
the others describe the file."""
INTEGER_OPTIONS = ("num_frames", "max_frames", "min_pixels", "max_pixels", "total_pixels")


def parse_image(image: object, field: str, uuid: str | None = None, **options: object) -> ImageInput:
    """Parses a PIL image, an array, or what `parse_source` does, with some of `IMAGE_OPTIONS`. Raises InputError."""
    source = parse_source(image, field, uuid) or _decoded_image(image, field)
    return ImageInput(source=source, field=field, uuid=uuid, **_image_options(options, field))


def parse_image_pil(image: object, field: str, uuid: str | None) -> ImageInput:
    """Parses an `image_pil` content part. Raises InputError."""
    if not isinstance(image, PIL.Image.Image | None):
        raise InputError(field, f"expected a PIL image, got {type(image).__name__}")
    return parse_image(image, field, uuid)


def parse_image_url(image_url: object, field: str, uuid: str | None) -> ImageInput:
    """Parses an `image_url` content part. Raises InputError."""
    if isinstance(image_url, str | None):
        return parse_image(image_url, field, uuid)
    url_fields = dict(known_fields(image_url, field, known=("url", *IMAGE_OPTIONS)))
    url, url_field = url_fields.pop("url", None), f"{field}.url"
    source = by_reference(uuid, url_field) if url is None else parse_url(url, url_field)
    return ImageInput(source=source, field=field, uuid=uuid, **_image_options(url_fields, field))


def _image_options(options: Mapping[str, object], field: str) -> dict[str, Any]:
    """Parses some of `IMAGE_OPTIONS`. Raises InputError."""
    detail = options.get("detail")
    if detail not in (None, "auto", "low", "high"):
        raise InputError(f"{field}.detail", f"expected 'auto', 'low' or 'high', got {detail!r}")
    bounds = {
        _SPELLINGS.get(name, name): parse_number(value, f"{field}.{name}", integer=True)
        for name, value in options.items()
        if name != "detail"
    }
    with blaming(field):
        check_image_bounds(bounds.get("min_pixels"), bounds.get("max_pixels"), low_detail=detail == "low")
    return {**bounds, "low_detail": detail == "low"}


def parse_video(video: object, field: str, uuid: str | None = None, **options: object) -> VideoInput:
    """Parses the bytes of a file, a URL, a data URL, base64, an array [frames, height, width, 3], or a list of frames.

    An array or a list may come in a pair with its metadata, as qwen-vl-utils returns it (`return_video_metadata`).

    Args:
        video: what the caller passed; None: the cached video of this uuid.
        field: its path.
        uuid: the caller's name for it.
        options: those of `VideoOptions`; others are ignored.

    Raises:
        InputError: it is something else, or an option is wrong.
    """
    options = {_SPELLINGS.get(name, name): value for name, value in options.items()}
    parsed = VideoOptions(
        **{
            name: parse_number(options[name], f"{field}.{name}", integer=name in INTEGER_OPTIONS)
            for name in _VIDEO_OPTIONS
            if name in options
        }
    )
    if video is None:  # the loader checks the options, once it knows whether a file or frames are cached
        return VideoInput(source=by_reference(uuid, field), field=field, options=parsed, uuid=uuid)
    source = _video_source(video, field)
    if isinstance(source, DecodedFrames) and source.seconds is not None and parsed.fps is not None:
        raise InputError(f"{field}.fps", "expected none, because the metadata say when the frames are; got one")
    with blaming(field):
        check_options(parsed, of_frames=is_made_of_frames(source))
    return VideoInput(source=source, field=field, options=parsed, uuid=uuid)


def parse_video_url(video_url: object, field: str, uuid: str | None) -> VideoInput:
    """Parses a `video_url` content part. Raises InputError."""
    if isinstance(video_url, str | None):
        return parse_video(video_url, field, uuid)
    url_fields = known_fields(video_url, field, known=("url", *VIDEO_OPTIONS))
    url = url_fields.get("url")
    if not isinstance(url, str | list | tuple | None):
        raise InputError(f"{field}.url", f"expected a URL, or a list of the frames' URLs, got {type(url).__name__}")
    return parse_video(url, field, uuid, **url_fields)


def is_video(value: Sequence[object]) -> bool:
    """Returns whether a sequence is one video: a list of decoded images, or a pair of frames and their metadata."""
    if not value:
        return False
    array = _as_array(value[0])
    is_frame = isinstance(value[0], PIL.Image.Image) or (array is not None and array.ndim == 3)
    return is_frame or (len(value) == 2 and isinstance(value[1], Mapping))


def _decoded_image(image: object, field: str) -> PIL.Image.Image:
    match image:
        case PIL.Image.Image():
            return _still(image, field)
        case np.ndarray():
            return PIL.Image.fromarray(_pixels(image, 3, field))
        case _:
            raise InputError(field, f"expected a PIL image, an array, bytes or a URL, got {type(image).__name__}")


def _still(image: PIL.Image.Image, field: str) -> PIL.Image.Image:
    """Returns an image that is not an animation, whose frames share one object. Raises InputError."""
    if is_animated(image):
        message = f"expected a still image, got an animated {spelling(image.format)}"
        raise InputError(field, f"{message}; pass its copy() for the current frame, or the file's bytes as a video")
    return image


def _video_source(video: object, field: str) -> VideoSource | DecodedFrames:
    match video:
        case bytes():
            return DataSource(data=video)
        case str():
            with blaming(field):
                return parse_video_text(video)
        case (frames, Mapping() as metadata):
            return _frames_with_metadata(frames, cast("Mapping[str, Any]", metadata), field)
        case list() | tuple():
            return _frames_source(video, field)
        case _:
            array = _as_array(video)
            if array is None:
                message = f"expected an array, a tensor, a list of frames, bytes or a URL, got {type(video).__name__}"
                raise InputError(field, message)
            return DecodedFrames(frames=list(_pixels(array, 4, field)))


def _frames_with_metadata(frames: object, metadata: Mapping[str, Any], field: str) -> DecodedFrames:
    """Parses decoded frames with the rate of the file that they were read from, and their indices in it."""
    source = _video_source(frames, f"{field}[0]")
    if not isinstance(source, DecodedFrames):
        raise InputError(f"{field}[0]", "expected decoded frames, to which the metadata belong, got a file")
    known_fields(metadata, f"{field}[1]", known=METADATA)
    fps = parse_number(metadata.get("fps"), f"{field}[1].fps", integer=False)
    if fps is None or not 0 < fps < math.inf:
        raise InputError(f"{field}[1].fps", f"expected the file's frames per second, above 0, got {fps!r}")
    indices = metadata.get("frames_indices")
    array = np.arange(len(source.frames)) if indices is None else np.asarray(indices)
    # As a list, because differences of unsigned integers are never below 0.
    if array.dtype.kind not in "iu" or array.shape != (len(source.frames),) or not _is_rising([0, *array.tolist()]):
        message = f"expected {len(source.frames)} integers, one for each frame, none less than the one before"
        raise InputError(f"{field}[1].frames_indices", f"{message}, got {reprlib.repr(indices)}")
    return replace(source, seconds=tuple(float(index) / fps for index in array))


def _is_rising(numbers: Sequence[int]) -> bool:
    """Whether no number is less than the one before."""
    return all(first <= second for first, second in pairwise(numbers))


def _frames_source(frames: Sequence[object], field: str) -> FrameSources | DecodedFrames:
    """Parses a list of frames: either all of them are decoded, or none is."""
    if all(isinstance(frame, str | bytes) for frame in frames):
        return FrameSources(
            frames=tuple(
                DataSource(data=frame) if isinstance(frame, bytes) else parse_url(frame, f"{field}[{index}]")
                for index, frame in enumerate(frames)
            )
        )
    return DecodedFrames(frames=[_decoded_frame(frame, f"{field}[{index}]") for index, frame in enumerate(frames)])


def _decoded_frame(frame: object, field: str) -> PIL.Image.Image | npt.NDArray[np.uint8]:
    if isinstance(frame, PIL.Image.Image):
        return _still(frame, field)
    array = _as_array(frame)
    if array is None:
        raise InputError(field, f"expected a PIL image or an array, like the other frames, got {type(frame).__name__}")
    return _pixels(array, 3, field)


def _as_array(value: object) -> npt.NDArray[Any] | None:
    """Returns None for anything but an array, or a tensor in host memory."""
    if not hasattr(value, "__array__") or isinstance(value, PIL.Image.Image):
        return None
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError):  # a tensor on another device, or one that requires gradients
        return None


def _pixels(array: npt.NDArray[Any], num_dimensions: int, field: str) -> npt.NDArray[np.uint8]:
    """Returns an image or the frames of a video, uint8 with the channels last. Raises InputError."""
    is_number = array.dtype == np.uint8 or np.issubdtype(array.dtype, np.floating)
    if not is_number or array.ndim != num_dimensions or not array.size or not {3, 4} & {*array.shape[-3::2]}:
        channels = "3 or 4 channels, last or first"
        shape = (
            f"[frames, height, width] with {channels}" if num_dimensions == 4 else f"[height, width] with {channels}"
        )
        message = f"expected an array of uint8 or floats, {shape}, got {array.dtype} {list(array.shape)}"
        raise InputError(field, message)
    if array.shape[-1] not in (3, 4):
        array = np.ascontiguousarray(np.moveaxis(array, -3, -1))
    return array if array.dtype == np.uint8 else _of_floats(array, field)


def _of_floats(array: npt.NDArray[Any], field: str) -> npt.NDArray[np.uint8]:
    """Rounds values from 0 to 255. As in transformers, those from 0 to 1 that are not all whole are scaled."""
    least, most = float(array.min()), float(array.max())
    if not (least >= 0 and most <= 255):  # written so that NaN fails
        raise InputError(field, f"expected floats from 0 to 255 or from 0 to 1, got {least:g} to {most:g}")
    is_scaled = most <= 1 and not np.array_equal(array, array.round())
    return (array * 255 if is_scaled else array).round().astype(np.uint8)
