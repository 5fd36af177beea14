"""Typed access to the options of the API's protos.

The generated stubs type every extension as a bare field descriptor; these functions give them their types.
"""

import re
from typing import Any, cast

from google.api import annotations_pb2 as http_annotations_pb2
from google.api import field_behavior_pb2, http_pb2
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message

from glimpse.json.v1 import annotations_pb2


def bounds_option(field: FieldDescriptor) -> annotations_pb2.Bounds:
    return _option(field, annotations_pb2.bounds)


def binding_option(method: MethodDescriptor) -> annotations_pb2.Binding:
    return _option(method, annotations_pb2.binding)


def http_option(method: MethodDescriptor) -> http_pb2.HttpRule:
    return _option(method, http_annotations_pb2.http)


def is_required(field: FieldDescriptor) -> bool:
    return field_behavior_pb2.REQUIRED in _option(field, field_behavior_pb2.field_behavior)


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def descriptor_of(message: Message | type[Message]) -> Descriptor:
    """Returns the descriptor of a message or of its class, whose stub type depends on how protobuf is built."""
    return cast(Descriptor, message.DESCRIPTOR)


def message_type(field: FieldDescriptor) -> Descriptor:
    return cast(Descriptor, field.message_type)


def enum_type(field: FieldDescriptor) -> EnumDescriptor:
    return cast(EnumDescriptor, field.enum_type)


def enum_names(enum: EnumDescriptor) -> dict[int, str]:
    """Returns the JSON names of an enum's values by number: without the enum's prefix, in lower case.

    The unspecified value has none.
    """
    prefix = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", enum.name).upper() + "_"
    return {value.number: value.name.removeprefix(prefix).lower() for value in enum.values if value.number}


def map_entry(field: FieldDescriptor) -> tuple[FieldDescriptor, FieldDescriptor]:
    """Returns the key and the value of a map field."""
    entry = message_type(field).fields_by_name
    return entry["key"], entry["value"]


def _option(descriptor: Any, extension: Any) -> Any:
    return descriptor.GetOptions().Extensions[extension]
