"""Random messages of any type that JSON can represent, generated from descriptors."""

import json
import struct
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

from glimpse.dialect.options import enum_type, is_map, map_entry, message_type
from glimpse.dialect.rules import FieldRules, OneofRules
from tests.server.codec.sample_dialect import CODEC

_JSON_VALUES = st.recursive(
    st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)

_SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.CPPTYPE_STRING: st.text(max_size=8),
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    FieldDescriptor.CPPTYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: st.integers(0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_FLOAT: st.floats(width=32, allow_nan=False, allow_infinity=False),
    FieldDescriptor.CPPTYPE_DOUBLE: st.floats(allow_nan=False, allow_infinity=False),
}


@st.composite
def messages(draw: st.DrawFn, descriptor: Descriptor, depth: int = 3) -> Any:
    """Draws a message of this type, with nested messages up to this depth."""
    rules = CODEC.dialect.message(descriptor)
    message = GetMessageClass(descriptor)()
    for member in rules.members:
        match member:
            case FieldRules():
                if draw(st.booleans()) or rules.union:
                    _set(draw, message, member, depth)
            case OneofRules():
                fields = [field for field in member.fields if depth > 0 or field.descriptor.message_type is None]
                # A tagged oneof or a union must be set: JSON has no form for one that is not.
                must = member.tag is not None or rules.union
                if must or (fields and draw(st.booleans())):
                    _set(draw, message, draw(st.sampled_from(fields or member.fields)), depth)
    return message


def _set(draw: st.DrawFn, message: Message, field: FieldRules, depth: int) -> None:
    name, descriptor = field.descriptor.name, field.descriptor
    if field.rule.raw:
        setattr(message, name, json.dumps(draw(_JSON_VALUES)))
    elif field.rule.float32s:
        numbers = draw(st.lists(_SCALARS[FieldDescriptor.CPPTYPE_FLOAT], max_size=3))
        setattr(message, name, struct.pack(f"<{len(numbers)}f", *numbers))
    elif field.is_map:
        _set_entries(draw, getattr(message, name), descriptor, depth)
    elif field.is_list:
        elements = getattr(message, name)
        elements.extend(draw(st.lists(_elements(descriptor, depth), max_size=2 if depth > 0 else 0)))
    elif descriptor.message_type is None:
        setattr(message, name, draw(_elements(descriptor, depth)))
    elif depth > 0 or descriptor.containing_oneof is not None:
        inner = draw(messages(descriptor.message_type, depth - 1))
        # JSON does not show that a flattened message is set if it is empty.
        if inner.ByteSize() > 0 or not field.rule.flatten:
            getattr(message, name).CopyFrom(inner)
            getattr(message, name).SetInParent()


def _set_entries(draw: st.DrawFn, entries: Any, descriptor: FieldDescriptor, depth: int) -> None:
    key, value = map_entry(descriptor)
    for name in draw(st.lists(_elements(key, depth), max_size=2 if depth > 0 else 0)):
        element = draw(_elements(value, depth))
        if value.message_type is None:
            entries[name] = element
        else:
            entries[name].CopyFrom(element)


def _elements(field: FieldDescriptor, depth: int) -> st.SearchStrategy[Any]:
    if field.message_type is not None and not is_map(field):
        return messages(message_type(field), depth - 1)
    if field.enum_type is not None:
        return st.sampled_from(sorted(CODEC.dialect.enum(enum_type(field)).names))
    if field.type == FieldDescriptor.TYPE_BYTES:
        return st.binary(max_size=8)
    return _SCALARS[field.cpp_type]


def all_types(*files: Any) -> list[Descriptor]:
    """Returns the message types of these files."""
    return [descriptor for file in files for descriptor in file.message_types_by_name.values()]
