"""What callers of the offline door pass as pictures and clips, made into typed inputs. Decodes nothing.

What was given before under a name (a uuid) may be left out: then it is None, and its name stands for it. Arrays and
tensors are taken as they are: uint8, channels last. A torch tensor is known by being an array when asked.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import PIL.Image

from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.kind import MediaKind
from glimpse.media.processing.video_options import VideoOptions, find_invalid_option
from glimpse.media.sources.source import (
    MAX_UUID_CHARACTERS,
    CachedSource,
    DataSource,
    FrameSources,
    ImageOrCached,
    Source,
    VideoOrCached,
    VideoSource,
    parse_url_text,
    parse_video_text,
)

VIDEO_OPTIONS = tuple(field.name for field in fields(VideoOptions))
_WHOLE_NUMBERS = ("num_frames", "max_frames", "min_pixels", "max_pixels", "total_pixels")


class InputError(ValueError):
    """An input that cannot be used; the message begins with where it stands, such as `messages[0].content[1]`."""

    def __init__(self, path: str, message: str, code: MediaErrorCode | None = None) -> None:
        super().__init__(f"{path}: {message}")
        self.code = code
        """What is wrong with a medium, where one is at fault that could be read as such."""


def known_fields(value: object, path: str, *, known: Sequence[str]) -> Mapping[str, Any]:
    """The fields of a dict of which all are known.

    Raises:
        InputError: it is something else, or has others.
    """
    if not isinstance(value, Mapping):
        raise InputError(path, f"expected a dict, not {type(value).__name__}")
    for name in value:
        if name not in known:
            raise InputError(f"{path}.{name}", f"not supported; {', '.join(known)} are")
    return value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImageInput:
    """A picture of a request."""

    kind: ClassVar = MediaKind.IMAGE
    picture: ImageOrCached | PIL.Image.Image
    path: str
    """Where the caller wrote it, for errors."""
    uuid: str | None = None
    """The caller's name for it, under which it is kept."""
    min_pixels: int | None = None
    """In place of the checkpoint's bound; None keeps that."""
    max_pixels: int | None = None


@dataclass(frozen=True, slots=True)
class Pictures:
    """Frames that need no decoding."""

    frames: Sequence[PIL.Image.Image | npt.NDArray[np.uint8]]
    """Pictures, or [height, width, 3 or 4] each."""

    def pick(self, indices: Sequence[int]) -> Iterator[PIL.Image.Image]:
        """Some of them, each made a picture when its turn comes."""
        for index in indices:
            frame = self.frames[index]
            yield frame if isinstance(frame, PIL.Image.Image) else PIL.Image.fromarray(frame)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VideoInput:
    """A clip of a request."""

    kind: ClassVar = MediaKind.VIDEO
    clip: VideoOrCached | Pictures
    path: str
    options: VideoOptions
    uuid: str | None = None
    """As of pictures."""


def parse_uuid(uuid: object, path: str) -> str | None:
    """A medium's name, or None. Raises InputError."""
    if uuid is None or (isinstance(uuid, str) and 1 <= len(uuid) <= MAX_UUID_CHARACTERS):
        return uuid
    raise InputError(path, f"a uuid is a text of 1 to {MAX_UUID_CHARACTERS} characters")


def left_out(uuid: str | None, path: str) -> CachedSource:
    """What stands for a medium that was given before. Raises InputError where it has no name."""
    if uuid is None:
        raise InputError(path, "there is none, and no uuid of one that was given before")
    return CachedSource(uuid=uuid)


def parse_image(picture: object, path: str, uuid: str | None = None) -> ImageInput:
    """A PIL image, an array, a file's bytes, a URL, a data URL or base64; None: left out. Raises InputError."""
    return ImageInput(picture=_parse_image(picture, path, uuid), path=path, uuid=uuid)


def _parse_image(picture: object, path: str, uuid: str | None) -> ImageOrCached | PIL.Image.Image:
    match picture:
        case None:
            return left_out(uuid, path)
        case PIL.Image.Image():
            return picture
        case np.ndarray():
            return PIL.Image.fromarray(_checked_array(picture, 3, path))
        case bytes():
            return DataSource(data=picture)
        case str():
            return parse_url(picture, path)
        case _:
            raise InputError(path, f"a picture is a PIL image, an array, bytes or a URL, not {type(picture).__name__}")


def parse_url(url: object, path: str) -> Source:
    """Raises InputError."""
    if not isinstance(url, str):
        raise InputError(path, "a picture's URL is a text")
    try:
        return parse_url_text(url)
    except MediaError as error:
        raise InputError(path, error.message, error.code) from error


def parse_video(clip: object, path: str, options: Mapping[str, Any], uuid: str | None = None) -> VideoInput:
    """A file's bytes, a URL, a data URL or base64; or frames: an array or tensor [frames, height, width, 3], or a list.

    None: it is left out.

    Args:
        clip: what the caller passed.
        path: where.
        options: members named as in `VideoOptions`.
        uuid: the caller's name for it.

    Raises:
        InputError: it is something else, or an option is wrong.
    """
    wishes = VideoOptions(
        **{name: parse_number(options[name], name, path) for name in VIDEO_OPTIONS if name in options}
    )
    if clip is None:  # whether it is a file or frames, and so which options it may have, is known where it is kept
        return VideoInput(clip=left_out(uuid, path), path=path, options=wishes, uuid=uuid)
    parsed = _parse_video(clip, path)
    wrong = find_invalid_option(wishes, of_frames=isinstance(parsed, FrameSources | Pictures))
    if wrong is not None:
        raise InputError(f"{path}.{wrong.name}", wrong.message)
    return VideoInput(clip=parsed, path=path, options=wishes, uuid=uuid)


def parse_number(value: object, name: str, path: str) -> Any:
    """What an option of clips may be, by its name: a whole number or any; or None. Raises InputError."""
    whole = name in _WHOLE_NUMBERS
    if value is None or (isinstance(value, int if whole else int | float) and not isinstance(value, bool)):
        return value
    raise InputError(f"{path}.{name}", "not a whole number" if whole else "not a number")


def is_frame(value: object) -> bool:
    """Whether it is one picture that needs no decoding."""
    array = _as_array(value)
    return isinstance(value, PIL.Image.Image) or (array is not None and array.ndim == 3)


def _parse_video(clip: object, path: str) -> VideoSource | Pictures:
    match clip:
        case bytes():
            return DataSource(data=clip)
        case str():
            try:
                return parse_video_text(clip)
            except MediaError as error:
                raise InputError(path, error.message, error.code) from error
        case list() | tuple():
            return _parse_frames(clip, path)
        case _:
            array = _as_array(clip)
            if array is None:
                message = f"a clip is an array, a tensor, a list of frames, bytes or a URL, not {type(clip).__name__}"
                raise InputError(path, message)
            return Pictures(list(_checked_array(array, 4, path)))


def _parse_frames(frames: Sequence[object], path: str) -> FrameSources | Pictures:
    """All need decoding, or none does."""
    if all(isinstance(frame, str | bytes) for frame in frames):
        return FrameSources(
            frames=tuple(
                DataSource(data=frame) if isinstance(frame, bytes) else parse_url(frame, f"{path}[{index}]")
                for index, frame in enumerate(frames)
            )
        )
    return Pictures([_parse_frame(frame, f"{path}[{index}]") for index, frame in enumerate(frames)])


def _parse_frame(frame: object, path: str) -> PIL.Image.Image | npt.NDArray[np.uint8]:
    if isinstance(frame, PIL.Image.Image):
        return frame
    array = _as_array(frame)
    if array is None:
        raise InputError(path, f"a frame is a PIL image or an array like the others, not {type(frame).__name__}")
    return _checked_array(array, 3, path)


def _as_array(value: object) -> npt.NDArray[Any] | None:
    """None for what is neither an array nor a tensor in this machine's memory."""
    if not hasattr(value, "__array__") or isinstance(value, PIL.Image.Image):
        return None
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError):  # a tensor on another device, or one with gradients
        return None


def _checked_array(array: npt.NDArray[Any], num_dimensions: int, path: str) -> npt.NDArray[np.uint8]:
    if array.dtype != np.uint8 or array.ndim != num_dimensions or array.shape[-1] not in (3, 4) or not array.size:
        shape = "[frames, height, width, 3 or 4]" if num_dimensions == 4 else "[height, width, 3 or 4]"
        raise InputError(path, f"an array is uint8 {shape}, not {array.dtype} {list(array.shape)}")
    return array
