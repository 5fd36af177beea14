"""The messages of a conversation, and their conversion to glimpse.v1."""

import io
import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from glimpse.client.png import GREY, RGB, RGBA, encode_png
from glimpse.v1 import content_pb2, media_pb2

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from PIL.Image import Image as PillowImage

_URL_SCHEMES = ("http://", "https://", "data:", "file://")
_PNG_MODES = frozenset({"1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16"})
_COLOUR_TYPES = {3: RGB, 4: RGBA}
"""By channels."""

File: TypeAlias = "str | os.PathLike[str] | bytes | media_pb2.Media"
"""A media file: a path, a URL (http, https, data or file), its bytes, or an upload (`Client.upload`)."""
ImageFile: TypeAlias = "File | PillowImage | npt.NDArray[np.uint8]"
"""The same, or an image of Pillow's or of NumPy, uint8 [height, width, 3 or 4] or [height, width], sent as PNG."""
Part: TypeAlias = "str | Image | Video | Audio"
"""A part of a message: text, or a media input."""
Prompt: TypeAlias = "str | Sequence[Part] | Sequence[Message]"
"""The text or the parts of a single user message, or a conversation, oldest message first."""
EmbeddingInput: TypeAlias = "str | Sequence[int] | Sequence[Part] | Sequence[Message]"
"""A text, which is embedded as it is; token ids; or a conversation: the parts of a user message, or messages."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image input."""

    source: "ImageFile | None" = None
    """The image; None with the `uuid` of an image that the server has cached."""
    _: KW_ONLY
    min_pixels: int | None = None
    """The server enlarges smaller images. Default: the model's."""
    max_pixels: int | None = None
    """The server reduces larger images. Default: the model's."""
    detail: Literal["auto", "low", "high"] | None = None
    """"low" limits the image to 512·512 pixels."""
    uuid: str | None = None
    """The caller's name for the image, under which the server caches it."""


@dataclass(frozen=True, slots=True)
class Video:
    """A video input. The model sees some of its frames."""

    source: "File | Sequence[ImageFile] | npt.NDArray[np.uint8] | None" = None
    """The file, or the frames as images of one size, also as an array [frames, height, width, 3 or 4]; None with the
    `uuid` of a video that the server has cached."""
    _: KW_ONLY
    fps: float | None = None
    """Frames sampled per second. Default: the model family's, 1 for most. For given frames, their rate."""
    num_frames: int | None = None
    """Number of frames sampled, evenly spaced. Excludes the `fps` of a file."""
    max_frames: int | None = None
    """The largest number of frames sampled. Default 768."""
    min_pixels: int | None = None
    """The server enlarges smaller frames. Default: the model's."""
    max_pixels: int | None = None
    """The server reduces larger frames. Default: the model's."""
    total_pixels: int | None = None
    """The largest number of pixels in all frames together."""
    start_seconds: float | None = None
    """Where in the file sampling begins. Default 0."""
    end_seconds: float | None = None
    """Where in the file sampling ends. Default: its end."""
    uuid: str | None = None
    """The caller's name for the video, under which the server caches it."""


@dataclass(frozen=True, slots=True)
class Audio:
    """An audio input, for models that accept audio."""

    source: "File | None" = None
    """The file; None with the `uuid` of a file that the server has cached."""
    _: KW_ONLY
    uuid: str | None = None
    """The caller's name for the file, under which the server caches it."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    """Who wrote it."""
    content: "Part | Sequence[Part]" = ()
    """Text and media inputs, in order."""
    _: KW_ONLY
    name: str | None = None
    """The author's name, where the model's chat template uses it."""
    tool_calls: Sequence[content_pb2.ToolCall] = ()
    """The tool calls of an assistant message (`Completion.tool_calls`)."""
    tool_call_id: str | None = None
    """The id of the tool call that a tool message answers."""
    reasoning: str | None = None
    """The reasoning of an assistant message (`Completion.reasoning`), where the model's chat template uses it."""


def to_messages(prompt: "Prompt") -> list[content_pb2.Message]:
    """Converts a prompt to glimpse.v1. Files are read here. Raises OSError, and TypeError for other parts."""
    if not isinstance(prompt, str) and all(isinstance(each, Message) for each in prompt):
        return [_to_message(each) for each in cast("Sequence[Message]", prompt)]
    return [_to_message(Message("user", cast("str | Sequence[Part]", prompt)))]


def read_file(source: "ImageFile") -> bytes:
    """Returns the bytes of a path, of bytes, or of a Pillow image as PNG. Raises OSError, ValueError."""
    match source:
        case bytes():
            return source
        case media_pb2.Media():
            raise ValueError("'source': expected a path, bytes or an image, got an upload")
        case str() if source.startswith(_URL_SCHEMES):
            raise ValueError("'source': expected a path, bytes or an image, got a URL")
        case str() | os.PathLike():
            return Path(source).read_bytes()
        case _ if hasattr(source, "__array_interface__") and not hasattr(source, "save"):
            return _encode_array(cast("npt.NDArray[np.uint8]", source))
        case _ if hasattr(source, "save"):
            return _encode_png(cast("PillowImage", source))
        case _:
            raise TypeError(f"'source': expected a path, URL, bytes or an image, got {type(source).__name__}")


def _encode_array(array: "npt.NDArray[np.uint8]") -> bytes:
    """Returns an image as PNG. Raises TypeError for another type or shape."""
    channels = array.shape[-1] if array.ndim == 3 else 1
    if array.dtype != "uint8" or array.ndim not in (2, 3) or (array.ndim == 3 and channels not in _COLOUR_TYPES):
        shape = "[height, width, 3 or 4] or [height, width]"
        raise TypeError(f"'source': expected a uint8 array {shape}, got {array.dtype} {list(array.shape)}")
    height, width = array.shape[:2]
    colour_type = GREY if array.ndim == 2 else _COLOUR_TYPES[channels]
    return encode_png((row.tobytes() for row in array), width=width, height=height, colour_type=colour_type)


def _encode_png(image: "PillowImage") -> bytes:
    file = io.BytesIO()
    (image if image.mode in _PNG_MODES else image.convert("RGB")).save(file, "PNG", compress_level=1)
    return file.getvalue()


def _to_message(message: Message) -> content_pb2.Message:
    content = message.content
    parts = [content] if isinstance(content, str | Image | Video | Audio) else content
    return content_pb2.Message(
        role=f"ROLE_{message.role.upper()}",
        content=[_to_part(part) for part in parts],
        name=message.name,
        tool_calls=message.tool_calls,
        tool_call_id=message.tool_call_id,
        reasoning=message.reasoning,
    )


def _to_part(part: "Part") -> content_pb2.ContentPart:
    match part:
        case str():
            return content_pb2.ContentPart(text=part)
        case Image():
            image = content_pb2.ImagePart(
                source=_to_source(part.source),
                min_pixels=part.min_pixels,
                max_pixels=part.max_pixels,
                detail=None if part.detail is None else f"IMAGE_DETAIL_{part.detail.upper()}",
            )
            return content_pb2.ContentPart(image=image, uuid=part.uuid)
        case Video():
            return content_pb2.ContentPart(video=_to_video(part), uuid=part.uuid)
        case Audio():
            return content_pb2.ContentPart(audio=content_pb2.AudioPart(source=_to_source(part.source)), uuid=part.uuid)
        case _:
            raise TypeError(f"'prompt': expected texts, Image, Video and Audio, got {type(part).__name__}")


def _to_video(video: Video) -> content_pb2.VideoPart:
    source, frames = video.source, None
    is_array = hasattr(source, "__array_interface__")
    if is_array or (isinstance(source, Sequence) and not isinstance(source, str | bytes)):
        images = cast("Sequence[ImageFile]", source)
        source, frames = None, content_pb2.FrameList(frames=filter(None, map(_to_source, images)))
    return content_pb2.VideoPart(
        source=_to_source(cast("File | None", source)),
        frames=frames,
        fps=video.fps,
        num_frames=video.num_frames,
        max_frames=video.max_frames,
        min_pixels=video.min_pixels,
        max_pixels=video.max_pixels,
        total_pixels=video.total_pixels,
        start_seconds=video.start_seconds,
        end_seconds=video.end_seconds,
    )


def _to_source(source: "ImageFile | None") -> content_pb2.MediaSource | None:
    """None, for media that the server has cached, stays None."""
    match source:
        case None:
            return None
        case media_pb2.Media():
            return content_pb2.MediaSource(upload_id=source.upload_id)
        case str() if source.startswith(_URL_SCHEMES):
            return content_pb2.MediaSource(url=source)
        case _:
            return content_pb2.MediaSource(data=read_file(source))
