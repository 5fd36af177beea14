"""Content parts of documents: media that callers of `LLM` pass become handles, and are put back after parsing."""

import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar, cast
from uuid import uuid4

import PIL.Image

from glimpse.media.embeddings.tensor_file import SerializedTensor
from glimpse.media.inputs import AudioInput, EmbeddingInput, MediumInput
from glimpse.media.kind import MediaKind
from glimpse.media.sources.decoded import AudioSamples, DecodedFrames
from glimpse.media.sources.source import DataSource, FrameSources, UploadSource
from glimpse.offline.fields import InputError, known_fields
from glimpse.offline.media.audio_inputs import is_samples, read_audio
from glimpse.offline.media.embedding_inputs import are_embeddings, is_reference, parse_embeddings, read_embedding
from glimpse.offline.media.visual_inputs import is_video, read_document, read_image, read_pil_image, read_video

_T = TypeVar("_T")
_PART = re.compile(r"(messages|documents)\[\d+\]\.content\[\d+\]")
_READERS: Mapping[str, Callable[[object, str], object]] = {
    "image": read_image,
    "image_url": read_image,
    "image_pil": read_pil_image,
    "image_embeds": partial(read_embedding, MediaKind.IMAGE),
    "video": read_video,
    "video_url": read_video,
    "video_embeds": partial(read_embedding, MediaKind.VIDEO),
    "audio": read_audio,
    "audio_url": read_audio,
    "input_audio": read_audio,
    "audio_embeds": partial(read_embedding, MediaKind.AUDIO),
    "document": read_document,
}
"""By type of content part, what returns the medium that a value is; a value that JSON has is returned as it is."""


class DocumentMedia:
    """The media of one document."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        """Path in the document → what the caller wrote there."""
        self._fields: dict[str, str] = {}
        """Path of a part → that of its medium in what the caller passed."""
        self._held: dict[str | bytes, object] = {}
        """Handle → medium."""

    def part(self, part: Mapping[str, object], path: str, field: str) -> Mapping[str, object]:
        """Returns a content part of the document.

        Raises:
            InputError: its medium is none.
        """
        self._fields[path] = field
        name = cast("str", part["type"])
        if name not in _READERS or (part.get(name) is None and name != "image_pil"):
            return part
        medium = _READERS[name](part.get(name), field)
        if isinstance(medium, DecodedFrames) and medium.seconds is not None and part.get("fps") is not None:
            raise InputError(f"{field}.fps", "expected none, because the metadata say when the frames are; got one")
        sent = "image" if name == "image_pil" else name
        self.names |= {f"{path}.{sent}.upload_id": field, f"{path}.{sent}": field}
        return {key: value for key, value in part.items() if key != name} | {"type": sent, sent: medium}

    def handle(self, value: object) -> object:
        """Returns what stands for a medium in the document; None for other values."""
        if not isinstance(value, PIL.Image.Image | DataSource | DecodedFrames | AudioSamples | EmbeddingInput):
            return None
        handle = uuid4().hex
        self._held[handle] = self._held[handle.encode()] = value
        if isinstance(value, EmbeddingInput):
            return b64encode(handle.encode()).decode()
        return [{"upload_id": handle}] if isinstance(value, DecodedFrames) else {"upload_id": handle}

    def put_back(self, media: Iterable[MediumInput], defaults_field: str) -> tuple[MediumInput, ...]:
        """Returns the media of the parsed document, by the caller's paths. `defaults_field`: that of their defaults."""
        return tuple(self._put_back(medium, defaults_field) for medium in media)

    def _put_back(self, medium: MediumInput, defaults_field: str) -> MediumInput:
        part = _PART.match(medium.field)
        assert part is not None
        field, source = self._fields.get(part[0], part[0]), self._source(medium.source)
        if isinstance(source, EmbeddingInput):
            return replace(source, field=field, uuid=medium.uuid)
        changes: dict[str, Any] = {"source": source, "field": field}
        if not isinstance(medium, AudioInput | EmbeddingInput):
            is_own = medium.options_field is not None and medium.options_field.startswith(part[0])
            changes["options_field"] = field if is_own else defaults_field
        return replace(medium, **changes)

    def _source(self, source: object) -> object:
        match source:
            case UploadSource(handle=handle) | SerializedTensor(data=handle):
                return self._held.get(handle, source)
            case FrameSources(frames=frames):
                first, *others = map(self._source, frames)
                return first if isinstance(first, DecodedFrames) else replace(source, frames=(first, *others))
            case _:
                return source


def content_parts(content: object, path: str, media: DocumentMedia, field: str | None = None) -> object:
    """Returns the content of a message, one part or several; `path` is its place in the document, `field` the caller's.

    Raises:
        InputError: a medium is none.
    """
    field = field or path
    if isinstance(content, Mapping):
        content = [content]
    if not isinstance(content, list | tuple):
        return content
    return [_part(part, f"{path}[{index}]", f"{field}[{index}]", media) for index, part in enumerate(content)]


def _part(part: object, path: str, field: str, media: DocumentMedia) -> object:
    match part:
        case {"type": str() as name, **members}:
            return media.part({"type": name, **members}, path, f"{field}.{name}" if name in members else field)
        case _:
            return part


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPart:
    """A medium of a prompt as a content part."""

    part: Mapping[str, object]
    field: str
    """The path of the medium."""
    uuid_field: str
    """The path of its uuid."""


def prompt_parts(media: object, uuids: object, field: str) -> Iterator[PromptPart]:
    """Yields the media of a prompt: images, then videos, then audio inputs. Placeholders in the prompt locate them.

    Args:
        media: `multi_modal_data`: for each kind a medium, or a list of media; None stands for a cached one.
        uuids: `multi_modal_uuids`: for each kind a uuid, or a list of as many uuids (or None) as there are media.

    Raises:
        InputError: they are something else.
    """
    kinds = tuple(kind for kind in MediaKind if kind is not MediaKind.DOCUMENT)  # conversations have documents
    values = known_fields(media, f"{field}.multi_modal_data", known=kinds)
    names = known_fields(uuids, f"{field}.multi_modal_uuids", known=kinds)
    for kind in kinds:
        path, uuids_path, own = f"{field}.multi_modal_data.{kind}", f"{field}.multi_modal_uuids.{kind}", names.get(kind)
        if not isinstance(own, str | list | tuple | None):
            message = f"expected a string, or a list of strings and None, got {type(own).__name__}"
            raise InputError(uuids_path, message)
        listed = () if own is None else (own,) if isinstance(own, str) else own
        value, name = values.get(kind), f"{kind}_embeds"
        if is_reference(kind, value):
            items = [None] * max(1, len(listed))
        elif are_embeddings(value):
            items = parse_embeddings(kind, value, path)
        else:
            items, name = _items(kind, value), kind.value
            if not items and (listed or (value is None and kind in values)):
                items = [None] * max(1, len(listed))  # all of them are cached
        for index, (item, uuid) in enumerate(_paired(items, listed, path)):
            yield PromptPart(
                part={"type": name, name: item, "uuid": uuid},
                field=f"{path}[{index}]" if name == kind else path,
                uuid_field=f"{uuids_path}[{index}]" if isinstance(own, list | tuple) else uuids_path,
            )


def _items(kind: MediaKind, value: object) -> Sequence[object]:
    """Returns one or several media as a list. A single medium of some kinds is a list itself."""
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        return (value,)
    # A list of images is one video, or frames and their metadata; a pair of an array and a number is one audio input.
    is_one = {MediaKind.VIDEO: is_video, MediaKind.AUDIO: is_samples}.get(kind, lambda _: False)
    return (value,) if is_one(value) else value


def _paired(media: Sequence[_T], uuids: Sequence[object], field: str) -> Sequence[tuple[_T, object]]:
    if uuids and len(uuids) != len(media):
        raise InputError(field, f"expected as many media as uuids, got {len(media)} media and {len(uuids)} uuids")
    return list(zip(media, uuids or [None] * len(media), strict=True))
