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

from glimpse.dialect.options import descriptor_of, map_entry, message_type
from glimpse.dialect.rules import FieldRules, MessageRules, OneofRules, message_rules
from glimpse.server.openai.scalars import Write, write_float32s, write_unchanged, writer

_Put: TypeAlias = Callable[[Message, dict[str, Any]], None]
"""Puts members of a message into its JSON object."""

_to_json = msgspec.json.Encoder().encode


def encode(message: Message) -> bytes:
    """Returns a message as a JSON document. Raises ValueError for a value that JSON does not have, such as infinity."""
    return _to_json(_value_writer(descriptor_of(message))(message))


@cache
def _value_writer(descriptor: Descriptor) -> Write:
    rules = message_rules(descriptor)
    return _union_writer(rules) if rules.union else _object_writer(rules)


def _object_writer(rules: MessageRules) -> Write:
    put_members = _members_putter(rules)

    def write(message: Message) -> dict[str, Any]:
        members: dict[str, Any] = {}
        put_members(message, members)
        return members

    return write


def _union_writer(rules: MessageRules) -> Write:
    writers = [(field.descriptor, _field_writer(field)) for field in rules.fields]

    def write(message: Message) -> Any:
        for field, write_field in writers:
            if not field.has_presence or message.HasField(field.name):
                return write_field(getattr(message, field.name))
        return None

    return write


def _members_putter(rules: MessageRules) -> _Put:
    constants = dict(rules.constants)
    putters = tuple(_member_putter(member) for member in rules.members)

    def put(message: Message, members: dict[str, Any]) -> None:
        if constants:
            members.update(constants)
        for put_member in putters:
            put_member(message, members)

    return put


def _member_putter(member: FieldRules | OneofRules) -> _Put:
    match member:
        case FieldRules():
            return _field_putter(member)
        case OneofRules():
            return _oneof_putter(member) if member.tag is None else _tagged_putter(member, member.tag)


def _oneof_putter(oneof: OneofRules) -> _Put:
    name = oneof.descriptor.name
    putters = {field.descriptor.name: _field_putter(field) for field in oneof.fields}

    def put(message: Message, members: dict[str, Any]) -> None:
        present = message.WhichOneof(name)
        if present in putters:
            putters[present](message, members)

    return put


def _tagged_putter(oneof: OneofRules, tag: str) -> _Put:
    put_field = _oneof_putter(oneof)
    name = oneof.descriptor.name
    tags = {field.descriptor.name: field.name for field in oneof.fields}
    bare = {field.descriptor.name for field in oneof.fields if _has_no_fields(field)}
    only_with = oneof.tag_only_with

    def put(message: Message, members: dict[str, Any]) -> None:
        present = message.WhichOneof(name)
        if present in tags:
            if only_with is None or message.HasField(only_with):
                members[tag] = tags[present]
            if present not in bare:
                put_field(message, members)

    return put


def _has_no_fields(field: FieldRules) -> bool:
    message = field.descriptor.message_type
    return message is not None and not message.fields


def _field_putter(field: FieldRules) -> _Put:
    if field.flatten:
        return _flattened_putter(field)
    if _is_enum(field) or (field.omit_empty and not field.descriptor.has_presence):
        return _filled_putter(field)
    if field.descriptor.has_presence:
        return _presence_putter(field)
    return _plain_putter(field)


def _flattened_putter(field: FieldRules) -> _Put:
    name = field.descriptor.name
    put_members = _members_putter(message_rules(message_type(field.descriptor)))

    def put(message: Message, members: dict[str, Any]) -> None:
        if message.HasField(name):
            put_members(getattr(message, name), members)

    return put


def _presence_putter(field: FieldRules) -> _Put:
    """Puts a field with presence if it is set."""
    name, json_name, nullable = field.descriptor.name, field.name, field.nullable
    write = _field_writer(field)

    def put(message: Message, members: dict[str, Any]) -> None:
        if message.HasField(name):
            members[json_name] = write(getattr(message, name))
        elif nullable:
            members[json_name] = None

    return put


def _filled_putter(field: FieldRules) -> _Put:
    """Puts a field if it is not empty. An enum is empty if it is zero, the unspecified value."""
    name, json_name, nullable = field.descriptor.name, field.name, field.nullable
    write = _field_writer(field)

    def put(message: Message, members: dict[str, Any]) -> None:
        value = getattr(message, name)
        if value:
            members[json_name] = write(value)
        elif nullable:
            members[json_name] = None

    return put


def _plain_putter(field: FieldRules) -> _Put:
    name, json_name, write = field.descriptor.name, field.name, _field_writer(field)
    if write is write_unchanged:
        return lambda message, members: members.__setitem__(json_name, getattr(message, name))

    def put(message: Message, members: dict[str, Any]) -> None:
        members[json_name] = write(getattr(message, name))

    return put


def _is_enum(field: FieldRules) -> bool:
    return field.descriptor.enum_type is not None and not field.is_list and not field.is_map


def _field_writer(field: FieldRules) -> Write:
    descriptor = field.descriptor
    if field.is_map:
        return _map_writer(descriptor)
    if field.raw:
        return _write_raw
    if field.float32s:
        return write_float32s
    write = _element_writer(descriptor)
    if not field.is_list:
        return write
    if write is write_unchanged and not field.null_elements:
        return list
    if field.null_elements:
        return lambda elements: [None if _is_absent(element) else write(element) for element in elements]
    return lambda elements: [write(element) for element in elements]


def _is_absent(element: float | Message) -> bool:
    return not element.ByteSize() if isinstance(element, Message) else element != element


def _element_writer(field: FieldDescriptor) -> Write:
    if field.message_type is None:
        return writer(field)
    descriptor = field.message_type

    def write(message: Message) -> Any:
        # Looked up at run time: a message may contain messages of its own type.
        return _value_writer(descriptor)(message)

    return write


def _map_writer(field: FieldDescriptor) -> Write:
    key_field, value_field = map_entry(field)
    write_key = _write_bool_key if key_field.cpp_type == FieldDescriptor.CPPTYPE_BOOL else str
    write = _element_writer(value_field)
    # Sorted, because the order of a map differs from run to run.
    return lambda entries: {write_key(key): write(entries[key]) for key in sorted(entries)}


def _write_bool_key(key: bool) -> str:
    return "true" if key else "false"


def _write_raw(text: str) -> msgspec.Raw | None:
    return msgspec.Raw(text.encode()) if text else None
