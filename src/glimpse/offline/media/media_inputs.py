"""Parses the media that callers of `LLM` pass: in a prompt's `multi_modal_data`, or as content parts of a message."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias, TypeVar

from glimpse.media.inputs import MediumInput
from glimpse.media.kind import MediaKind
from glimpse.offline.fields import InputError, known_fields, parse_uuid
from glimpse.offline.media.audio_inputs import is_samples, parse_audio, parse_audio_url, parse_input_audio
from glimpse.offline.media.embedding_inputs import (
    are_embeddings,
    is_reference,
    parse_embedding,
    parse_embeddings,
)
from glimpse.offline.media.visual_inputs import (
    IMAGE_OPTIONS,
    VIDEO_OPTIONS,
    is_video,
    parse_image,
    parse_image_pil,
    parse_image_url,
    parse_video,
    parse_video_url,
)

_T = TypeVar("_T")
_Parser: TypeAlias = Callable[..., MediumInput]
"""Takes a value, its path and its uuid; for `video` also the options."""


def parse_media(media: object, uuids: object, field: str) -> tuple[MediumInput, ...]:
    """Parses the media of a prompt: images, then videos, then audio inputs. Placeholders in the prompt locate them.

    Args:
        media: `multi_modal_data`: for each kind a medium, or a list of media; None stands for a cached one.
        uuids: `multi_modal_uuids`: for each kind a uuid, or a list of as many uuids (or None) as there are media.
        field: the path of the prompt.

    Raises:
        InputError: they are something else.
    """
    kinds = tuple(MediaKind)
    values = known_fields(media, f"{field}.multi_modal_data", known=kinds)
    names = known_fields(uuids, f"{field}.multi_modal_uuids", known=kinds)
    return tuple(
        medium
        for kind in MediaKind
        for medium in _parse_kind(
            kind,
            values.get(kind),
            _parse_uuids(names.get(kind), f"{field}.multi_modal_uuids.{kind}"),
            f"{field}.multi_modal_data.{kind}",
            is_present=kind in values,
        )
    )


def _parse_uuids(uuids: object, field: str) -> Sequence[str | None]:
    """Parses a uuid, or a list of one uuid or None for each medium. Empty if no medium has one."""
    if uuids is None or isinstance(uuids, str):
        return () if uuids is None else (parse_uuid(uuids, field),)
    if not isinstance(uuids, list | tuple):
        raise InputError(field, f"expected a string, or a list of strings and None, got {type(uuids).__name__}")
    return [parse_uuid(uuid, f"{field}[{index}]") for index, uuid in enumerate(uuids)]


def _parse_kind(
    kind: MediaKind, value: object, uuids: Sequence[str | None], field: str, *, is_present: bool
) -> Sequence[MediumInput]:
    """Parses the media of one kind."""
    if is_reference(kind, value):
        return [parse_embedding(kind, value, field, uuid) for uuid in uuids or (None,)]
    if are_embeddings(value):
        embeddings = parse_embeddings(kind, value, field)
        return [replace(each, uuid=uuid) for each, uuid in _paired(embeddings, uuids, field)]
    items = _items(kind, value)
    if not items and (uuids or (value is None and is_present)):
        items = [None] * max(1, len(uuids))  # all of them are cached
    return [
        _PARSERS[kind](item, f"{field}[{index}]", uuid)
        for index, (item, uuid) in enumerate(_paired(items, uuids, field))
    ]


def _items(kind: MediaKind, value: object) -> Sequence[object]:
    """Returns one or several media as a list. A single medium of some kinds is a list itself."""
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        return (value,)
    # A list of images is one video, or frames and their metadata; a pair of an array and a number is one audio input.
    is_one = {MediaKind.VIDEO: is_video, MediaKind.AUDIO: is_samples}.get(kind, lambda _: False)
    return (value,) if is_one(value) else value


def _paired(media: Sequence[_T], uuids: Sequence[str | None], field: str) -> Sequence[tuple[_T, str | None]]:
    if uuids and len(uuids) != len(media):
        raise InputError(field, f"expected as many media as uuids, got {len(media)} media and {len(uuids)} uuids")
    return list(zip(media, uuids or [None] * len(media), strict=True))


_PARSERS: Mapping[MediaKind, _Parser] = {
    MediaKind.IMAGE: parse_image,
    MediaKind.VIDEO: parse_video,
    MediaKind.AUDIO: parse_audio,
}


def parse_part(part: object, field: str) -> str | MediumInput:
    """Parses a content part of a message: text, or a medium. Raises InputError."""
    if not isinstance(part, Mapping) or "type" not in part:
        raise InputError(field, "expected a content part: a dict with a type")
    name: object = part["type"]
    part = {key: value for key, value in part.items() if value is not None or key == name}
    if name == "text":
        text = known_fields(part, field, known=("type", "text")).get("text")
        if not isinstance(text, str):
            raise InputError(f"{field}.text", f"expected a string, got {type(text).__name__}")
        return text
    if not isinstance(name, str) or name not in _PART_PARSERS:
        raise InputError(field, f"expected a type of text, {', '.join(_PART_PARSERS)}, got {name!r}")
    option_names = _PART_OPTIONS.get(name, ())
    part_fields = known_fields(part, field, known=("type", name, "uuid", *option_names))
    uuid = parse_uuid(part_fields.get("uuid"), f"{field}.uuid")
    options = {option: part_fields[option] for option in option_names if option in part_fields}
    return _PART_PARSERS[name](part_fields.get(name), f"{field}.{name}", uuid, **options)


_PART_PARSERS: Mapping[str, _Parser] = {
    "image_url": parse_image_url,
    "image": parse_image,
    "image_pil": parse_image_pil,
    "image_embeds": partial(parse_embedding, MediaKind.IMAGE),
    "video_url": parse_video_url,
    "video": parse_video,
    "video_embeds": partial(parse_embedding, MediaKind.VIDEO),
    "audio_url": parse_audio_url,
    "input_audio": parse_input_audio,
    "audio": parse_audio,
    "audio_embeds": partial(parse_embedding, MediaKind.AUDIO),
}
"""By the type of the content part."""

_PART_OPTIONS: Mapping[str, Sequence[str]] = {"image": IMAGE_OPTIONS, "video": VIDEO_OPTIONS}
"""Options that stand beside the medium."""
