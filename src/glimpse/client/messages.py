"""The messages of a conversation, and their conversion to glimpse.v1."""

import mimetypes
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from glimpse.client.openai_json import to_message
from glimpse.client.sources import File, ImageFile, to_source
from glimpse.v1 import content_pb2

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Part: TypeAlias = "str | Image | Video | Audio | Document | Mapping[str, Any]"
"""A part of a message: text, a media input, or OpenAI's JSON: `{"type": "image_url", "image_url": {"url": …}}`."""
Prompt: TypeAlias = "str | Sequence[Part] | Sequence[Message | Mapping[str, Any]]"
"""The text or the parts of a single user message, or a conversation, oldest message first: messages, also as OpenAI's
JSON, as `{"role": "user", "content": …}`."""
EmbeddingInput: TypeAlias = "str | Sequence[int] | Sequence[Part] | Sequence[Message | Mapping[str, Any]]"
"""A text, which is embedded as it is, or for late interaction as a query; token ids; or a conversation: the parts of a
user message, or messages."""
RankedDocument: TypeAlias = "str | Sequence[Part]"
"""A document that is scored: its text, or its texts and media."""


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
    detail: Literal["auto", "low", "high", "original"] | None = None
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
class Document:
    """A PDF file. The model reads its pages in order."""

    source: "File | None" = None
    """The file; None with the `uuid` of a file that the server has cached."""
    _: KW_ONLY
    first_page: int | None = None
    """The first page to read. Default 1."""
    last_page: int | None = None
    """The last page to read. Default: the document's last."""
    page_content: Literal["auto", "image", "text", "image_and_text"] | None = None
    """What the model reads of each page. Default: its image, or its text if the model does not accept images."""
    dpi: int | None = None
    """The resolution at which pages are drawn. Default 150, or less for very large pages."""
    min_pixels: int | None = None
    """The server enlarges smaller pages. Default: the model's."""
    max_pixels: int | None = None
    """The server reduces larger pages. Default: the model's."""
    detail: Literal["auto", "low", "high", "original"] | None = None
    """"low" limits each page to 512·512 pixels."""
    uuid: str | None = None
    """The caller's name for the file, under which the server caches it."""


_MEDIA = (Image, Video, Audio, Document)


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
    tool_calls: Sequence[content_pb2.ToolCall | Mapping[str, Any]] = ()
    """The tool calls of an assistant message (`Completion.tool_calls`)."""
    tool_call_id: str | None = None
    """The id of the tool call that a tool message answers."""
    reasoning: str | None = None
    """The reasoning of an assistant message (`Completion.reasoning`), where the model's chat template uses it."""


def to_messages(prompt: "Prompt") -> list[content_pb2.Message]:
    """Converts a prompt to glimpse.v1. Files are read here. Raises OSError, and TypeError for other parts."""
    if not isinstance(prompt, str) and all(map(_is_message, prompt)):
        return [_to_message(each, f"messages[{index}]") for index, each in enumerate(prompt)]
    return [_to_message(Message("user", cast("str | Sequence[Part]", prompt)), "")]


def _is_message(given: object) -> bool:
    return isinstance(given, Message | content_pb2.Message) or (isinstance(given, Mapping) and "role" in given)


def _to_message(message: Any, path: str) -> content_pb2.Message:
    if not isinstance(message, Message):
        return to_message(content_pb2.Message, _with_parts(message), path)
    content = message.content
    parts = [content] if isinstance(content, (str, Mapping, *_MEDIA)) else content
    return content_pb2.Message(
        role=f"ROLE_{message.role.upper()}",
        content=[_to_part(part) for part in parts],
        name=message.name,
        tool_calls=[to_message(content_pb2.ToolCall, call, "tool_calls") for call in message.tool_calls],
        tool_call_id=message.tool_call_id,
        reasoning=message.reasoning,
    )


def _with_parts(message: Any) -> Any:
    """Returns a message of JSON in which the media inputs of this module are those of glimpse.v1."""
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, Sequence) or isinstance(content, str):
        return message
    return {
        **message,
        "content": [_to_part(part) if isinstance(part, _MEDIA) else part for part in content],
    }


def _warn_of_path(text: str) -> None:
    """Warns of a text that is the path of a media file."""
    media_type = mimetypes.guess_type(text)[0] or ""
    kind = "document" if media_type == "application/pdf" else media_type.partition("/")[0]
    if kind in ("image", "video", "audio", "document") and Path(text).is_file():
        meant = f"{kind.capitalize()}({text!r})"
        warnings.warn(f"{text!r} is sent as text, and there is such a file; did you mean {meant}?", stacklevel=2)


def _to_part(part: "Part") -> content_pb2.ContentPart:
    match part:
        case str():
            _warn_of_path(part)
            return content_pb2.ContentPart(text=part)
        case Mapping():
            return to_message(content_pb2.ContentPart, part, "content")
        case Image():
            image = content_pb2.ImagePart(
                source=to_source(part.source),
                min_pixels=part.min_pixels,
                max_pixels=part.max_pixels,
                detail=_to_detail(part.detail),
            )
            return content_pb2.ContentPart(image=image, uuid=part.uuid)
        case Video():
            return content_pb2.ContentPart(video=_to_video(part), uuid=part.uuid)
        case Audio():
            return content_pb2.ContentPart(audio=content_pb2.AudioPart(source=to_source(part.source)), uuid=part.uuid)
        case Document():
            content = part.page_content
            document = content_pb2.DocumentPart(
                source=to_source(part.source),
                first_page=part.first_page,
                last_page=part.last_page,
                page_content=None if content is None else f"PAGE_CONTENT_{content.upper()}",
                dpi=part.dpi,
                min_pixels=part.min_pixels,
                max_pixels=part.max_pixels,
                detail=_to_detail(part.detail),
            )
            return content_pb2.ContentPart(document=document, uuid=part.uuid)
        case _:
            raise TypeError(f"'prompt': expected texts, Image, Video, Audio and Document, got {type(part).__name__}")


def _to_detail(detail: str | None) -> str | None:
    return None if detail is None else f"IMAGE_DETAIL_{detail.upper()}"


def _to_video(video: Video) -> content_pb2.VideoPart:
    source, frames = video.source, None
    is_array = hasattr(source, "__array_interface__")
    if is_array or (isinstance(source, Sequence) and not isinstance(source, str | bytes)):
        images = cast("Sequence[ImageFile]", source)
        source, frames = None, content_pb2.FrameList(frames=filter(None, map(to_source, images)))
    return content_pb2.VideoPart(
        source=to_source(cast("File | None", source)),
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
