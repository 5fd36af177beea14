"""Reads the images, videos and documents that callers of `LLM` pass. Decodes nothing.

Arrays and tensors have their channels last or first.
Those of uint8, channels last, are used without a copy. Floats are from 0 to 255, as `process_vision_info` of
qwen-vl-utils makes them, or from 0 to 1. A torch tensor is recognized by its `__array__` method.
"""

import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import PIL.Image

from glimpse.media.containers.animation import is_animated
from glimpse.media.containers.sniff import spelling
from glimpse.media.sources.decoded import DecodedFrames
from glimpse.media.sources.source import DataSource
from glimpse.offline.fields import InputError, known_fields

METADATA = ("fps", "frames_indices", "total_num_frames", "duration", "width", "height", "video_backend")
"""Metadata of frames, named as in qwen-vl-utils and transformers. `fps` and `frames_indices` say when each frame is;
the others describe the file."""


def read_image(image: object, field: str) -> object:
    """Returns a PIL image, an array or a file's bytes as a source, and what JSON has as it is. Raises InputError."""
    match image:
        case None | str() | Mapping():
            return image
        case bytes():
            return DataSource(data=image)
        case PIL.Image.Image():
            return _still(image, field)
        case np.ndarray():
            return PIL.Image.fromarray(_pixels(image, 3, field))
        case _:
            raise InputError(field, f"expected a PIL image, an array, bytes or a URL, got {type(image).__name__}")


def read_pil_image(image: object, field: str) -> object:
    """Does what `read_image` does, for PIL images and None alone."""
    if not isinstance(image, PIL.Image.Image | None):
        raise InputError(field, f"expected a PIL image, got {type(image).__name__}")
    return read_image(image, field)


def read_document(document: object, field: str) -> object:
    """Returns a file's bytes as a source, and what JSON has as it is. Raises InputError."""
    match document:
        case None | str() | Mapping():
            return document
        case bytes():
            return DataSource(data=document)
        case _:
            raise InputError(field, f"expected bytes or a URL, got {type(document).__name__}")


def read_video(video: object, field: str) -> object:
    """Returns the bytes of a file or decoded frames as a source, and what JSON has as it is.

    Frames are an array [frames, height, width, 3], a list of images, arrays or files, or one of these in a pair with
    its metadata, as qwen-vl-utils returns it (`return_video_metadata`).

    Raises:
        InputError: it is something else.
    """
    match video:
        case None | str() | Mapping():
            return video
        case bytes():
            return DataSource(data=video)
        case (frames, Mapping() as metadata) if not isinstance(frames, str | Mapping):
            return _frames_with_metadata(frames, cast("Mapping[str, Any]", metadata), field)
        case list() | tuple() if all(isinstance(frame, str | bytes | Mapping) for frame in video):
            return [DataSource(data=frame) if isinstance(frame, bytes) else frame for frame in video]
        case list() | tuple():
            return DecodedFrames(frames=[_decoded_frame(frame, f"{field}[{i}]") for i, frame in enumerate(video)])
        case _:
            array = _as_array(video)
            if array is None:
                message = f"expected an array, a tensor, a list of frames, bytes or a URL, got {type(video).__name__}"
                raise InputError(field, message)
            return DecodedFrames(frames=list(_pixels(array, 4, field)))


def is_video(value: Sequence[object]) -> bool:
    """Returns whether a sequence is one video: a list of decoded images, or a pair of frames and their metadata."""
    if not value:
        return False
    array = _as_array(value[0])
    is_frame = isinstance(value[0], PIL.Image.Image) or (array is not None and array.ndim == 3)
    return is_frame or (len(value) == 2 and isinstance(value[1], Mapping))


def _still(image: PIL.Image.Image, field: str) -> PIL.Image.Image:
    """Returns an image that is not an animation, whose frames share one object. Raises InputError."""
    if is_animated(image):
        message = f"expected a still image, got an animated {spelling(image.format)}"
        raise InputError(field, f"{message}; pass its copy() for the current frame, or the file's bytes as a video")
    return image


def _frames_with_metadata(frames: object, metadata: Mapping[str, Any], field: str) -> DecodedFrames:
    """Parses decoded frames with the rate of the file that they were read from, and their indices in it."""
    source = read_video(frames, f"{field}[0]")
    if not isinstance(source, DecodedFrames):
        raise InputError(f"{field}[0]", "expected decoded frames, to which the metadata belong, got a file")
    known_fields(metadata, f"{field}[1]", known=METADATA)
    fps = metadata.get("fps")
    if not isinstance(fps, int | float) or not 0 < fps < math.inf:
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
