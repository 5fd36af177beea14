"""JSON values → fields of a message: scalars, messages, lists and maps. Does not know the objects around them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from glimpse.dialect.options import map_entry, message_type
from glimpse.dialect.rules import FieldRules, JsonKind
from glimpse.server.field_path import Place, path_text
from glimpse.server.openai.document import RawText
from glimpse.server.openai.scalars import key_reader, kind_of, reader, wrong_type


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What is kept while one document is read."""

    raw: RawText
    """The document's text."""
    unknown: list[str]
    """JSON paths of the members that no rule knows, so far."""
    aliased: dict[str, str]
    """Path of a field by its own name → the path by which it was given, so far; an outer one before those inside."""

    def found(self, field: FieldRules, place: Place) -> None:
        """Takes note of the name under which a field stands at its place."""
        if place is not None and place[1] in field.aliases:
            self.aliased[path_text((place[0], field.name))] = path_text(place)


Store: TypeAlias = Callable[[Message, Any, Place, Reading], None]
"""Stores a JSON value, not null, in one field of a message. Raises DecodeError."""
ReadMessage: TypeAlias = Callable[[Descriptor, Message, Any, Place, Reading], None]
"""Reads a JSON value into a message of this type. Raises DecodeError."""


def field_store(field: FieldRules, read_message: ReadMessage) -> Store:
    """How the field is stored."""
    if field.is_map:
        return _map_store(field.descriptor, read_message)
    if field.is_list:
        return _list_store(field, read_message)
    if field.raw:
        return _raw_store(field.descriptor.name)
    if field.descriptor.message_type is not None:
        return _message_store(field.descriptor, read_message)
    return _scalar_store(field.descriptor)


def _scalar_store(field: FieldDescriptor) -> Store:
    name, read = field.name, reader(field)

    def store(message: Message, value: Any, place: Place, _reading: Reading) -> None:
        setattr(message, name, read(value, place))

    return store


def _raw_store(name: str) -> Store:
    def store(message: Message, _value: Any, place: Place, reading: Reading) -> None:
        setattr(message, name, reading.raw.at(place))

    return store


def _message_store(field: FieldDescriptor, read_message: ReadMessage) -> Store:
    name, descriptor = field.name, message_type(field)

    def store(message: Message, value: Any, place: Place, reading: Reading) -> None:
        inner = getattr(message, name)
        inner.SetInParent()
        read_message(descriptor, inner, value, place, reading)

    return store


def _list_store(field: FieldRules, read_message: ReadMessage) -> Store:
    name = field.descriptor.name
    append = _appender(field.descriptor, read_message)
    is_bare = _bareness(field)

    def store(message: Message, value: Any, place: Place, reading: Reading) -> None:
        elements = getattr(message, name)
        if is_bare(value):
            append(elements, value, place, reading)
        elif type(value) is list:
            for index, element in enumerate(value):
                append(elements, element, (place, index), reading)
        else:
            raise wrong_type(field.kinds, value, place)

    return store


def _bareness(field: FieldRules) -> Callable[[Any], bool]:
    """Whether a value is a single element rather than the list."""
    if not field.accept_scalar:
        return lambda _value: False
    kinds = field.element_kinds

    def is_bare(value: Any) -> bool:
        if type(value) is not list:
            return kind_of(value) in kinds
        # Where elements may be arrays themselves, an array is one if what it holds could be no element.
        return JsonKind.ARRAY in kinds and len(value) > 0 and kind_of(value[0]) not in kinds

    return is_bare


def _appender(field: FieldDescriptor, read_message: ReadMessage) -> Callable[[Any, Any, Place, Reading], None]:
    if field.message_type is not None:
        descriptor = field.message_type
        return lambda elements, value, place, reading: read_message(descriptor, elements.add(), value, place, reading)
    read = reader(field)
    return lambda elements, value, place, _reading: elements.append(read(value, place))


def _map_store(field: FieldDescriptor, read_message: ReadMessage) -> Store:
    name = field.name
    key_field, value_field = map_entry(field)
    read_key = key_reader(key_field)
    put = _putter(value_field, read_message)

    def store(message: Message, value: Any, place: Place, reading: Reading) -> None:
        if type(value) is not dict:
            raise wrong_type(JsonKind.OBJECT, value, place)
        entries = getattr(message, name)
        for text, element in value.items():
            where = (place, text)
            put(entries, read_key(text, where), element, where, reading)

    return store


def _putter(field: FieldDescriptor, read_message: ReadMessage) -> Callable[[Any, Any, Any, Place, Reading], None]:
    if field.message_type is not None:
        descriptor = field.message_type
        return lambda entries, key, value, place, reading: read_message(descriptor, entries[key], value, place, reading)
    read = reader(field)

    def put(entries: Any, key: Any, value: Any, place: Place, _reading: Reading) -> None:
        entries[key] = read(value, place)

    return put
