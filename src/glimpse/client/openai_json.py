"""Messages of glimpse.v1 from OpenAI's JSON, which Python has as dicts and lists. The descriptors say how."""

import base64
import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from glimpse.client.sources import to_source
from glimpse.v1 import content_pb2

_MessageT = TypeVar("_MessageT", bound=Message)

_NAMES = {
    "max_tokens": "max_completion_tokens",
    "image_url": "image",
    "input_image": "image",
    "image_pil": "image",
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "video_url": "video",
    "input_audio": "audio",
    "audio_url": "audio",
    "image_embeds": "image_embeddings",
    "video_embeds": "video_embeddings",
    "audio_embeds": "audio_embeddings",
    "reasoning_content": "reasoning",
    "media_io_kwargs": "media_io_options",
    "mm_processor_kwargs": "media_processor_options",
}
"""Names of JSON and those of glimpse.v1, where they differ. Errors list the first of several."""
_FLATTENED = ("generation", "source", "named_tool")
"""Fields whose members JSON has beside them."""
_JSON_TEXTS = frozenset({"schema", "parameters", "chat_template_kwargs", "json"})
"""String fields that hold JSON."""
_TAG = "type"
_HINTS = {
    "stream": "call `stream` instead",
    "format": "use 'response_format'",
    "images": "put each into a message, as Image(…)",
    "extra_body": "give its members by name",
    "functions": "use 'tools'",
}
"""What to write instead of words of other clients."""
_NEAR = 0.75
_MAX_NAMES = 12


class OptionError(TypeError):
    """A name that is unknown, or a value that its field cannot hold. The message begins with the path."""


def to_message(kind: type[_MessageT], value: object, path: str = "") -> _MessageT:
    """Returns a message of this type. Raises OptionError, and OSError for a file that cannot be read.

    A value that is no mapping belongs to the first field that takes it, as the text of a part does. None counts as not
    given.

    Args:
        kind: the type.
        value: the message, a mapping from names of its fields (glimpse.v1's or JSON's), or the first field's value.
        path: of the value, for errors.
    """
    if isinstance(value, kind):
        return value
    message: _MessageT = kind()
    descriptor: Any = message.DESCRIPTOR  # of two implementations
    if not isinstance(value, Mapping):
        _set(message, _first_field(descriptor, value), value, path)
        return message
    given = {str(name): member for name, member in value.items() if member is not None}
    if _TAG in given and _TAG not in descriptor.fields_by_name:
        _add_tagged(descriptor, given, path)
    taken: dict[str, str] = {}
    for name, member in given.items():
        own = _NAMES.get(name, name)
        if (other := taken.setdefault(own, name)) != name:
            raise OptionError(f"{_quoted(path, name)}: expected one of {other!r} and {name!r}, got both")
        _set(message, own, member, f"{path}.{name}" if path else name)
    return message


def _first_field(descriptor: Descriptor, value: object) -> str:
    takes_lists = [field for field in descriptor.fields if field.is_repeated or field.message_type is not None]
    fields = takes_lists if isinstance(value, list | tuple) and takes_lists else descriptor.fields
    return fields[0].name


def _add_tagged(descriptor: Descriptor, given: dict[str, Any], path: str) -> None:
    """Replaces the member that names another one. OpenAI's `{"type": "json_object"}` has nothing else."""
    tag = str(given.pop(_TAG))
    name = _NAMES.get(tag, tag)
    if name not in descriptor.fields_by_name and _flattened(descriptor, name) is None:
        names = {own: other for other, own in reversed(_NAMES.items())}
        known = (names.get(own, own) for oneof in descriptor.oneofs[:1] for own in (each.name for each in oneof.fields))
        raise OptionError(f"{_quoted(path, _TAG)}: expected {_listed(known)}, got {tag!r}")
    if not any(_NAMES.get(other, other) == name for other in given):
        given[tag] = {}


def _quoted(path: str, name: str) -> str:
    return f"'{path}.{name}'" if path else f"'{name}'"


def _flattened(descriptor: Descriptor, name: str) -> str | None:
    """Returns the field that has this one among its members."""
    for outer in _FLATTENED:
        field = descriptor.fields_by_name.get(outer)
        if field is not None and field.message_type and name in field.message_type.fields_by_name:
            return outer
    return None


def _set(message: Message, name: str, value: Any, path: str) -> None:
    descriptor: Any = message.DESCRIPTOR
    field = descriptor.fields_by_name.get(name)
    if field is None:
        outer = _flattened(descriptor, name)
        if outer is None:
            raise OptionError(_unknown(descriptor, name, path))
        _set(getattr(message, outer), name, value, path)
        return
    try:
        _assign(message, field, value, path)
    except OptionError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError):
        raise OptionError(f"'{path}': expected {_expected(field)}, got {_shown(value)}") from None


def _assign(message: Message, field: FieldDescriptor, value: Any, path: str) -> None:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        keys, values = kind.fields
        entries = {_scalar(keys, key): _scalar(values, each) for key, each in value.items()}
        getattr(message, field.name).update(entries)
    elif field.is_repeated:
        values = value if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping) else [value]
        target = getattr(message, field.name)
        for index, each in enumerate(values):
            target.append(_value(field, each, f"{path}[{index}]"))
    elif kind is not None:
        getattr(message, field.name).CopyFrom(_value(field, value, path))
    elif isinstance(message, content_pb2.MediaSource) and field.name == "url":
        message.CopyFrom(to_source(value) or message)  # a path is read here, as that of an `Image` is
    else:
        setattr(message, field.name, _scalar(field, value))


def _value(field: FieldDescriptor, value: object, path: str) -> Any:
    if field.message_type is None:
        return _scalar(field, value)
    return to_message(GetMessageClass(field.message_type), value, path)


def _scalar(field: FieldDescriptor, value: Any) -> Any:
    """Returns a value as protobuf takes it. Raises TypeError and ValueError, as protobuf does for what it is given."""
    if isinstance(value, bool) is not (field.type == FieldDescriptor.TYPE_BOOL):
        raise TypeError
    match field.type:
        case FieldDescriptor.TYPE_ENUM if isinstance(value, str):
            return _names(field.enum_type)[value]
        case FieldDescriptor.TYPE_STRING if field.name in _JSON_TEXTS and not isinstance(value, str):
            return json.dumps(value)
        case FieldDescriptor.TYPE_BYTES if isinstance(value, str):
            return base64.b64decode(value, validate=True)
        case FieldDescriptor.TYPE_INT32 if isinstance(value, str):
            return int(value)
        case _:
            return value


def _names(enum: Any) -> dict[str, int]:
    """Returns the numbers of an enum's values by their names in JSON, such as "low" for REASONING_EFFORT_LOW."""
    prefix = enum.values[0].name.removesuffix("UNSPECIFIED")
    return {value.name.removeprefix(prefix).lower(): value.number for value in enum.values[1:]}


def _unknown(descriptor: Descriptor, name: str, path: str) -> str:
    inner: list[Any] = [
        descriptor.fields_by_name[outer].message_type for outer in _FLATTENED if outer in descriptor.fields_by_name
    ]
    known = {field.name for each in (descriptor, *inner) for field in each.fields} - set(_FLATTENED)
    known |= {other for other, own in _NAMES.items() if own in known}
    if hint := _HINTS.get(name):
        return f"'{path}': {hint}"
    snake = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
    near = difflib.get_close_matches(snake, sorted(known), n=1, cutoff=_NEAR)
    if near:
        return f"'{path}': there is no such name; did you mean {near[0]!r}?"
    return f"'{path}': there is no such name" + (
        f"; expected {_listed(sorted(known))}" if len(known) <= _MAX_NAMES else ""
    )


def _listed(names: Iterable[str]) -> str:
    return " or ".join(map(repr, names))


def _expected(field: FieldDescriptor) -> str:
    if field.enum_type is not None:
        return _listed(_names(field.enum_type))
    words = {
        FieldDescriptor.CPPTYPE_STRING: "text",
        FieldDescriptor.CPPTYPE_BOOL: "true or false",
        FieldDescriptor.CPPTYPE_FLOAT: "a number",
        FieldDescriptor.CPPTYPE_DOUBLE: "a number",
        FieldDescriptor.CPPTYPE_UINT32: "an integer of at least 0",
        FieldDescriptor.CPPTYPE_UINT64: "an integer of at least 0",
        FieldDescriptor.CPPTYPE_MESSAGE: "an object",
    }
    word = words.get(field.cpp_type, "an integer")
    return f"a list of {word}" if field.is_repeated else word


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
