"""Reads JSON values into the fields of a message: scalars, messages, lists and maps."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from glimpse.dialect.options import message_type
from glimpse.dialect.rules import FieldRules, JsonKind
from glimpse.server.codec.document import RawText
from glimpse.server.codec.scalars import Read, decode_error, key_reader, kind_of, read_float32s, reader, wrong_type
from glimpse.server.field_path import FieldPath, path_text

MAX_IGNORED = 128
"""The most members without effect that are recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeContext:
    """The state of decoding one document."""

    raw: RawText
    """The document's text."""
    ignored: list[str]
    """JSON paths of members that have no effect, so far."""
    aliased: dict[str, str]
    """JSON path by a field's own name → the path that the client used, so far. Outer paths come first."""
    stream_member: str | None
    """The member of the outermost object that asks for a stream; no message has it."""

    @property
    def is_full(self) -> bool:
        """Whether no more members without effect are recorded."""
        return len(self.ignored) >= MAX_IGNORED

    def report_ignored(self, path: FieldPath) -> None:
        """Records the path of a member without effect; not of thousands, since the response lists a few."""
        if not self.is_full:
            self.ignored.append(path_text(path))

    def record_alias(self, field: FieldRules, path: FieldPath) -> None:
        """Records the path of a field that the client sent under an alias."""
        if path is not None and path[1] in field.aliases:
            self.record_name((path[0], field.name), path)

    def record_name(self, own: FieldPath, sent: FieldPath) -> None:
        """Records the path of what the client sent in another place than `own`, the path by the fields' own names."""
        self.aliased[path_text(own)] = path_text(sent)


Setter: TypeAlias = Callable[[Message, Any, FieldPath, DecodeContext], None]
"""Sets one field of a message to a JSON value other than null. Raises DecodeError."""
ReadMessage: TypeAlias = Callable[[Descriptor, Message, Any, FieldPath, DecodeContext], None]
"""Reads a JSON value into a message of this type. Raises DecodeError."""


def field_setter(field: FieldRules, read_message: ReadMessage) -> Setter:
    """Returns the function that sets the field."""
    if field.entry is not None:
        return _map_setter(field.descriptor.name, *field.entry, read_message)
    if field.is_list:
        return _list_setter(field, read_message)
    if field.rule.raw:
        return _raw_setter(field.descriptor.name)
    if field.descriptor.message_type is not None:
        return _message_setter(field.descriptor, read_message)
    return _scalar_setter(field.descriptor.name, read_float32s if field.rule.float32s else reader(field))


def _scalar_setter(name: str, read: Read) -> Setter:

    def set_field(message: Message, value: Any, path: FieldPath, _context: DecodeContext) -> None:
        setattr(message, name, read(value, path))

    return set_field


def _raw_setter(name: str) -> Setter:
    def set_field(message: Message, _value: Any, path: FieldPath, context: DecodeContext) -> None:
        setattr(message, name, context.raw.at(path))

    return set_field


def _message_setter(field: FieldDescriptor, read_message: ReadMessage) -> Setter:
    name, descriptor = field.name, message_type(field)

    def set_field(message: Message, value: Any, path: FieldPath, context: DecodeContext) -> None:
        inner = getattr(message, name)
        inner.SetInParent()
        read_message(descriptor, inner, value, path, context)

    return set_field


def _list_setter(field: FieldRules, read_message: ReadMessage) -> Setter:
    name = field.descriptor.name
    append = _appender(field, read_message)
    append_absent = _append_message if field.descriptor.message_type is not None else _append_nan
    is_single = _single_element_test(field)

    def set_field(message: Message, value: Any, path: FieldPath, context: DecodeContext) -> None:
        elements = getattr(message, name)
        if is_single(value):
            append(elements, value, path, context)
        elif type(value) is list:
            if not value and field.rule.non_empty:
                raise decode_error("expected null or at least 1 element, got 0", path)
            for index, element in enumerate(value):
                if element is None and field.rule.null_elements:
                    append_absent(elements)
                else:
                    append(elements, element, (path, index), context)
        else:
            raise wrong_type(field.kinds, value, path)

    return set_field


def _append_message(elements: Any) -> None:
    elements.add()


def _append_nan(elements: Any) -> None:
    elements.append(math.nan)


def _single_element_test(field: FieldRules) -> Callable[[Any], bool]:
    """Returns the function that tells a single element from a list."""
    if not field.rule.accept_scalar:
        return lambda _value: False
    kinds = field.element_kinds

    def is_single(value: Any) -> bool:
        if type(value) is not list:
            return kind_of(value) in kinds
        # If elements may be arrays themselves, an array is an element unless it contains one.
        return JsonKind.ARRAY in kinds and len(value) > 0 and kind_of(value[0]) not in kinds

    return is_single


def _appender(field: FieldRules, read_message: ReadMessage) -> Callable[[Any, Any, FieldPath, DecodeContext], None]:
    descriptor = field.descriptor.message_type
    if descriptor is not None:
        return lambda elements, value, path, context: read_message(descriptor, elements.add(), value, path, context)
    read = reader(field)
    return lambda elements, value, path, _context: elements.append(read(value, path))


def _map_setter(name: str, key: FieldRules, value_field: FieldRules, read_message: ReadMessage) -> Setter:
    read_key = key_reader(key)
    put = _putter(value_field, read_message)

    def set_field(message: Message, value: Any, path: FieldPath, context: DecodeContext) -> None:
        if type(value) is not dict:
            raise wrong_type(JsonKind.OBJECT, value, path)
        entries = getattr(message, name)
        for text, element in value.items():
            entry = (path, text)
            put(entries, read_key(text, entry), element, entry, context)

    return set_field


def _putter(field: FieldRules, read_message: ReadMessage) -> Callable[[Any, Any, Any, FieldPath, DecodeContext], None]:
    descriptor = field.descriptor.message_type
    if descriptor is not None:
        return lambda entries, key, value, path, context: read_message(descriptor, entries[key], value, path, context)
    read = reader(field)

    def put(entries: Any, key: Any, value: Any, path: FieldPath, _context: DecodeContext) -> None:
        entries[key] = read(value, path)

    return put
