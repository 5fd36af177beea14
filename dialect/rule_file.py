"""The rules of the JSON dialect as text: `openai.txtpb`, looked up by the full names of what they apply to."""

from importlib import resources

from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor, EnumValueDescriptor, FieldDescriptor, OneofDescriptor

from glimpse.json.v1 import dialect_pb2

_messages: dict[str, dialect_pb2.MessageRule] = {}
_oneofs: dict[str, dialect_pb2.OneofRule] = {}
_fields: dict[str, dialect_pb2.FieldRule] = {}
_enum_values: dict[str, dialect_pb2.EnumValueRule] = {}


def add_rules(text: str) -> None:
    """Adds the rules of a text-format `glimpse.json.v1.Dialect`, for messages that are not in use yet.

    Raises text_format.ParseError.
    """
    dialect = text_format.Parse(text, dialect_pb2.Dialect())
    for message in dialect.messages:
        _messages[message.name] = message
        _oneofs.update((f"{message.name}.{oneof.name}", oneof) for oneof in message.oneofs)
        _fields.update((f"{message.name}.{field.name}", field) for field in message.fields)
    for enum in dialect.enums:
        _enum_values.update((f"{enum.name}.{value.name}", value) for value in enum.values)


def message_rule(message: Descriptor) -> dialect_pb2.MessageRule:
    return _messages.get(message.full_name) or dialect_pb2.MessageRule()


def oneof_rule(oneof: OneofDescriptor) -> dialect_pb2.OneofRule:
    return _oneofs.get(oneof.full_name) or dialect_pb2.OneofRule()


def field_rule(field: FieldDescriptor) -> dialect_pb2.FieldRule:
    return _fields.get(field.full_name) or dialect_pb2.FieldRule()


def enum_value_rule(value: EnumValueDescriptor) -> dialect_pb2.EnumValueRule:
    return _enum_values.get(f"{value.type.full_name}.{value.name}") or dialect_pb2.EnumValueRule()


add_rules(resources.files("glimpse.dialect").joinpath("openai.txtpb").read_text(encoding="utf-8"))
