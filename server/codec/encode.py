"""Encodes messages as JSON documents, by the rules of the dialect.

Each message type is compiled once into functions that put its members into a dictionary, in the order of the document;
msgspec writes the dictionary as text.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import msgspec
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from glimpse.dialect.options import descriptor_of, message_type
from glimpse.dialect.rules import Dialect, FieldRules, MessageRules, OneofRules
from glimpse.server.codec.scalars import Write, write_float32s, write_unchanged, writer

_Put: TypeAlias = Callable[[Message, dict[str, Any]], None]
"""Puts members of a message into its JSON object."""

_to_json = msgspec.json.Encoder().encode


class MessageWriter:
    """Writes messages of any type as JSON values."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._value_writer = cache(self._new_writer)

    def document(self, message: Message) -> bytes:
        """Returns a message as a JSON document. Raises ValueError for a value that JSON has not, such as infinity."""
        return _to_json(self._value_writer(descriptor_of(message))(message))

    def _new_writer(self, descriptor: Descriptor) -> Write:
        rules = self._dialect.message(descriptor)
        return self._union_writer(rules) if rules.union else self._object_writer(rules)

    def _object_writer(self, rules: MessageRules) -> Write:
        put_members = self._members_putter(rules)

        def write(message: Message) -> dict[str, Any]:
            members: dict[str, Any] = {}
            put_members(message, members)
            return members

        return write

    def _union_writer(self, rules: MessageRules) -> Write:
        writers = [(field.descriptor, self._field_writer(field)) for field in rules.fields]

        def write(message: Message) -> Any:
            for field, write_field in writers:
                if not field.has_presence or message.HasField(field.name):
                    return write_field(getattr(message, field.name))
            return None

        return write

    def _members_putter(self, rules: MessageRules) -> _Put:
        constants = dict(rules.constants)
        putters = tuple(self._member_putter(member) for member in rules.members)

        def put(message: Message, members: dict[str, Any]) -> None:
            if constants:
                members.update(constants)
            for put_member in putters:
                put_member(message, members)

        return put

    def _member_putter(self, member: FieldRules | OneofRules) -> _Put:
        match member:
            case FieldRules():
                return self._field_putter(member)
            case OneofRules():
                return self._oneof_putter(member) if member.tag is None else self._tagged_putter(member, member.tag)

    def _oneof_putter(self, oneof: OneofRules) -> _Put:
        name = oneof.descriptor.name
        putters = {field.descriptor.name: self._field_putter(field) for field in oneof.fields}

        def put(message: Message, members: dict[str, Any]) -> None:
            present = message.WhichOneof(name)
            if present in putters:
                putters[present](message, members)

        return put

    def _tagged_putter(self, oneof: OneofRules, tag: str) -> _Put:
        put_field = self._oneof_putter(oneof)
        name = oneof.descriptor.name
        tags = {field.descriptor.name: field.name for field in oneof.fields}
        bare = {field.descriptor.name for field in oneof.fields if field.has_no_fields}
        only_with = oneof.tag_only_with

        def put(message: Message, members: dict[str, Any]) -> None:
            present = message.WhichOneof(name)
            if present in tags:
                if only_with is None or message.HasField(only_with):
                    members[tag] = tags[present]
                if present not in bare:
                    put_field(message, members)

        return put

    def _field_putter(self, field: FieldRules) -> _Put:
        if field.inline:
            return self._flattened_putter(field)
        if _is_enum(field) or (field.rule.omit_empty and not field.descriptor.has_presence):
            return self._filled_putter(field)
        if field.descriptor.has_presence:
            return self._presence_putter(field)
        return self._plain_putter(field)

    def _flattened_putter(self, field: FieldRules) -> _Put:
        name = field.descriptor.name
        put_members = self._members_putter(self._dialect.message(message_type(field.descriptor)))

        def put(message: Message, members: dict[str, Any]) -> None:
            if message.HasField(name):
                put_members(getattr(message, name), members)

        return put

    def _presence_putter(self, field: FieldRules) -> _Put:
        name, json_name, nullable = field.descriptor.name, field.name, field.rule.nullable
        write = self._field_writer(field)

        def put(message: Message, members: dict[str, Any]) -> None:
            if message.HasField(name):
                members[json_name] = write(getattr(message, name))
            elif nullable:
                members[json_name] = None

        return put

    def _filled_putter(self, field: FieldRules) -> _Put:
        """Puts a field if it is not empty. An enum is empty if it is zero, the unspecified value."""
        name, json_name, nullable = field.descriptor.name, field.name, field.rule.nullable
        write = self._field_writer(field)

        def put(message: Message, members: dict[str, Any]) -> None:
            value = getattr(message, name)
            if value:
                members[json_name] = write(value)
            elif nullable:
                members[json_name] = None

        return put

    def _plain_putter(self, field: FieldRules) -> _Put:
        name, json_name, write = field.descriptor.name, field.name, self._field_writer(field)
        if write is write_unchanged:
            return lambda message, members: members.__setitem__(json_name, getattr(message, name))

        def put(message: Message, members: dict[str, Any]) -> None:
            members[json_name] = write(getattr(message, name))

        return put

    def _field_writer(self, field: FieldRules) -> Write:
        if field.entry is not None:
            return self._map_writer(*field.entry)
        if field.rule.raw:
            return _write_raw
        if field.rule.float32s:
            return write_float32s
        write = self._element_writer(field)
        if not field.is_list:
            return write
        if write is write_unchanged and not field.rule.null_elements:
            return list
        if field.rule.null_elements:
            return lambda elements: [None if _is_absent(element) else write(element) for element in elements]
        return lambda elements: [write(element) for element in elements]

    def _element_writer(self, field: FieldRules) -> Write:
        descriptor = field.descriptor.message_type
        if descriptor is None:
            return writer(field)

        def write(message: Message) -> Any:
            # Looked up at run time: a message may contain messages of its own type.
            return self._value_writer(descriptor)(message)

        return write

    def _map_writer(self, key: FieldRules, value: FieldRules) -> Write:
        write_key = _write_bool_key if key.descriptor.cpp_type == FieldDescriptor.CPPTYPE_BOOL else str
        write = self._element_writer(value)
        # Sorted, because the order of a map differs from run to run.
        return lambda entries: {write_key(key): write(entries[key]) for key in sorted(entries)}


def _is_enum(field: FieldRules) -> bool:
    return field.descriptor.enum_type is not None and not field.is_list and not field.is_map


def _is_absent(element: float | Message) -> bool:
    return not element.ByteSize() if isinstance(element, Message) else element != element


def _write_bool_key(key: bool) -> str:
    return "true" if key else "false"


def _write_raw(text: str) -> msgspec.Raw | None:
    return msgspec.Raw(text.encode()) if text else None
