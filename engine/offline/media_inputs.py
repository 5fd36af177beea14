"""The media that callers of the offline door pass, in vLLM's and OpenAI's forms, each made into a typed input.

Knows where they may stand: in a prompt's `multi_modal_data`, or as parts of a message. What one may be, the other
`glimpse.engine.offline.visual_inputs…` know.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias, TypeVar

import PIL.Image

from glimpse.engine.offline.audio_inputs import is_samples, parse_audio, parse_audio_url, parse_input_audio
from glimpse.engine.offline.embedding_inputs import (
    MediumInput,
    are_embeddings,
    are_left_out,
    parse_embedding,
    parse_embeddings,
)
from glimpse.engine.offline.visual_inputs import (
    VIDEO_OPTIONS,
    ImageInput,
    InputError,
    VideoInput,
    is_frame,
    known_fields,
    left_out,
    parse_image,
    parse_url,
    parse_uuid,
    parse_video,
)
from glimpse.media.kind import MediaKind

_T = TypeVar("_T")
_PartParser: TypeAlias = Callable[..., MediumInput]
"""Takes a part's value, its path and its uuid; of `video` also its options."""


def parse_media(media: object, uuids: object, path: str) -> tuple[MediumInput, ...]:
    """The media of a prompt: pictures, clips, then sounds. The prompt's placeholders say which stands where.

    Args:
        media: `multi_modal_data`: for each kind a medium, or a list of media, of which those that are left out are
            None.
        uuids: `multi_modal_uuids`: for each kind a name, or a list of as many names (or None) as there are media.
        path: the prompt's.

    Raises:
        InputError: they are something else.
    """
    kinds = tuple(kind.value for kind in MediaKind)
    given = known_fields(media, f"{path}.multi_modal_data", known=kinds)
    names = known_fields(uuids, f"{path}.multi_modal_uuids", known=kinds)
    return tuple(
        medium
        for kind in MediaKind
        for medium in _parse_kind(
            kind,
            given.get(kind),
            _parse_uuids(names.get(kind), f"{path}.multi_modal_uuids.{kind}"),
            f"{path}.multi_modal_data.{kind}",
            is_there=kind in given,
        )
    )


def _parse_uuids(uuids: object, path: str) -> Sequence[str | None]:
    """A name, or one or None for each medium; none at all: no medium has one."""
    if uuids is None or isinstance(uuids, str):
        return () if uuids is None else (parse_uuid(uuids, path),)
    if not isinstance(uuids, list | tuple):
        raise InputError(path, "expected a text, or a list of texts and None")
    return [parse_uuid(uuid, f"{path}[{index}]") for index, uuid in enumerate(uuids)]


def _parse_kind(
    kind: MediaKind, given: object, uuids: Sequence[str | None], path: str, *, is_there: bool
) -> Sequence[MediumInput]:
    """The media of a kind, each with its name."""
    if are_left_out(kind, given):
        return [parse_embedding(kind, given, path, uuid) for uuid in uuids or (None,)]
    if are_embeddings(given):
        media: Sequence[MediumInput] = parse_embeddings(kind, given, path)
        return [replace(medium, uuid=uuid) for medium, uuid in _paired(media, uuids, path)]
    items = _items(kind, given)
    if not items and (uuids or (given is None and is_there)):
        items = [None] * max(1, len(uuids))  # all of them are left out
    return [
        _PARSERS[kind](item, f"{path}[{index}]", uuid) for index, (item, uuid) in enumerate(_paired(items, uuids, path))
    ]


def _items(kind: MediaKind, given: object) -> Sequence[object]:
    """One or several media, which of some kinds are lists themselves."""
    if given is None:
        return ()
    if not isinstance(given, list | tuple):
        return (given,)
    # A list of pictures is one clip, a pair of an array and a number one sound.
    is_one = (kind is MediaKind.VIDEO and given and is_frame(given[0])) or (
        kind is MediaKind.AUDIO and is_samples(given)
    )
    return (given,) if is_one else given


def _paired(media: Sequence[_T], uuids: Sequence[str | None], path: str) -> Sequence[tuple[_T, str | None]]:
    if uuids and len(uuids) != len(media):
        raise InputError(path, f"there are {len(media)} of them, and {len(uuids)} uuids")
    return list(zip(media, uuids or [None] * len(media), strict=True))


_PARSERS: Mapping[MediaKind, Callable[[object, str, str | None], MediumInput]] = {
    MediaKind.IMAGE: parse_image,
    MediaKind.VIDEO: lambda clip, path, uuid: parse_video(clip, path, {}, uuid),
    MediaKind.AUDIO: parse_audio,
}


def parse_part(part: object, path: str) -> str | MediumInput:
    """A part of a message's content: a text, or a medium. Raises InputError."""
    if not isinstance(part, Mapping) or "type" not in part:
        raise InputError(path, "a part is a dict with a type")
    name: object = part["type"]
    if name == "text":
        text = known_fields(part, path, known=("type", "text")).get("text")
        if not isinstance(text, str):
            raise InputError(f"{path}.text", "there is no text")
        return text
    if not isinstance(name, str) or name not in _PARTS:
        raise InputError(path, f"parts of type {name!r} are not supported; text, {', '.join(_PARTS)} are")
    options = VIDEO_OPTIONS if name == "video" else ()
    fields = known_fields(part, path, known=("type", name, "uuid", *options))
    uuid = parse_uuid(fields.get("uuid"), f"{path}.uuid")
    wishes = {option: fields[option] for option in options if option in fields}
    return _PARTS[name](fields.get(name), f"{path}.{name}", uuid, **wishes)


def _parse_image_pil(picture: object, path: str, uuid: str | None) -> ImageInput:
    if not isinstance(picture, PIL.Image.Image | None):
        raise InputError(path, f"not a PIL image but {type(picture).__name__}")
    return parse_image(picture, path, uuid)


def _parse_image_url(image_url: object, path: str, uuid: str | None) -> ImageInput:
    if isinstance(image_url, str | None):
        return parse_image(image_url, path, uuid)
    fields = known_fields(image_url, path, known=("url", "min_pixels", "max_pixels"))
    for name in ("min_pixels", "max_pixels"):
        if not isinstance(fields.get(name), int | None):
            raise InputError(f"{path}.{name}", "not a whole number")
    url = fields.get("url")
    return ImageInput(
        picture=left_out(uuid, f"{path}.url") if url is None else parse_url(url, f"{path}.url"),
        path=path,
        uuid=uuid,
        min_pixels=fields.get("min_pixels"),
        max_pixels=fields.get("max_pixels"),
    )


def _parse_video_url(video_url: object, path: str, uuid: str | None) -> VideoInput:
    if isinstance(video_url, str | None):
        return parse_video(video_url, path, {}, uuid)
    fields = known_fields(video_url, path, known=("url", *VIDEO_OPTIONS))
    url = fields.get("url")
    if not isinstance(url, str | list | tuple | None):
        raise InputError(f"{path}.url", "a clip's URL is a text, or a list of those of its frames")
    return parse_video(url, path, fields, uuid)


def _parse_video(clip: object, path: str, uuid: str | None, **options: object) -> VideoInput:
    return parse_video(clip, path, options, uuid)


def _embedding_parser(kind: MediaKind) -> _PartParser:
    return lambda value, path, uuid: parse_embedding(kind, value, path, uuid)


_PARTS: Mapping[str, _PartParser] = {
    "image_url": _parse_image_url,
    "image_pil": _parse_image_pil,
    "image_embeds": _embedding_parser(MediaKind.IMAGE),
    "video_url": _parse_video_url,
    "video": _parse_video,
    "video_embeds": _embedding_parser(MediaKind.VIDEO),
    "audio_url": parse_audio_url,
    "input_audio": parse_input_audio,
    "audio": parse_audio,
    "audio_embeds": _embedding_parser(MediaKind.AUDIO),
}
"""By the types of content parts."""
