"""Bounds what parsing a request may cost, before anything of it is parsed.

A body may be large, for its media, but a megabyte of tiny fields takes far longer to parse than a large image.
"""

from typing import TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from glimpse.dialect.options import descriptor_of
from glimpse.server.call.offload import MAX_INLINE_BYTES, run_sized
from glimpse.server.errors import InvalidRequest

MAX_JSON_VALUES = 500_000
"""The most values of a JSON document; parsing them takes 50 ms, in which nothing else runs."""
MAX_FIELDS = 200_000
"""The most fields of a protobuf message, those of the messages in it included."""

_PACKED_BYTES_PER_FIELD = 16
"""Bytes of packed numbers that cost as much as a field."""

_MessageT = TypeVar("_MessageT", bound=Message)


def check_json_size(document: bytes) -> None:
    """Raises InvalidRequest for a document with too many values."""
    if len(document) > MAX_JSON_VALUES and document.count(b",") >= MAX_JSON_VALUES:
        raise _too_large(f"at most {MAX_JSON_VALUES} JSON values")


async def parse_message(message_class: type[_MessageT], data: bytes, client: str) -> _MessageT:
    """Parses a message, in a thread if it is large. Raises InvalidRequest."""
    return await run_sized(client, len(data), _parse, message_class, data)


def _parse(message_class: type[_MessageT], data: bytes) -> _MessageT:
    try:
        if len(data) > MAX_INLINE_BYTES:
            _check_fields(descriptor_of(message_class), data)
        return message_class.FromString(data)
    except (DecodeError, IndexError) as error:
        raise InvalidRequest("", f"expected a {message_class.DESCRIPTOR.full_name} message, got other bytes") from error


def _check_fields(descriptor: Descriptor, data: bytes) -> None:
    """Counts fields without building them. Raises IndexError if the bytes end too early."""
    num_fields = 0
    messages: list[tuple[Descriptor, int, int]] = [(descriptor, 0, len(data))]
    while messages:
        descriptor, position, end = messages.pop()
        fields = descriptor.fields_by_number
        while position < end:
            tag, position = _read_varint(data, position)
            field = fields.get(tag >> 3)
            start, position = _skip_value(data, position, tag & 7)
            num_fields += 1
            if field is not None and tag & 7 == _LENGTH_DELIMITED:
                if field.message_type is not None:
                    messages.append((field.message_type, start, position))
                elif field.type not in _TEXTS:
                    num_fields += (position - start) // _PACKED_BYTES_PER_FIELD
            if num_fields > MAX_FIELDS:
                raise _too_large(f"at most {MAX_FIELDS} fields")


_LENGTH_DELIMITED = 2
_MAX_VARINT_BITS = 70
_TEXTS = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)


def _skip_value(data: bytes, position: int, wire_type: int) -> tuple[int, int]:
    """Returns where a value begins and ends: for length-delimited ones, without the length."""
    match wire_type:
        case 0:
            return position, _read_varint(data, position)[1]
        case 1:
            return position, position + 8
        case 2:
            num_bytes, start = _read_varint(data, position)
            return start, start + num_bytes
        case 5:
            return position, position + 4
        case _:  # groups, whose fields follow as if they were the message's own; the library refuses other types
            return position, position


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while data[position] & 0x80:
        value |= (data[position] & 0x7F) << shift
        shift += 7
        position += 1
        if shift > _MAX_VARINT_BITS:
            raise DecodeError("a number has too many bytes")
    return value | data[position] << shift, position + 1


def _too_large(expected: str) -> InvalidRequest:
    return InvalidRequest("", f"The request has too many parts: expected {expected}, got more.", "request_too_large")
