"""Single JSON values ↔ values of scalar fields. Knows the types that a field can have, and no message."""

import base64
import binascii
import math
import struct
from collections.abc import Callable, Collection
from functools import cache
from typing import Any, TypeAlias

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor

from glimpse.dialect.options import enum_type
from glimpse.dialect.rules import JsonKind, enum_rules
from glimpse.server.field_path import Place, path_text
from glimpse.server.openai.document import DecodeError

Read: TypeAlias = Callable[[Any, Place], Any]
"""From a JSON value, and its place for errors, to a field's value. Raises DecodeError."""
Write: TypeAlias = Callable[[Any], Any]
"""From a field's value to a JSON value. Raises ValueError for what JSON cannot say."""

_KIND_OF_PYTHON_TYPE = {
    str: JsonKind.STRING,
    bool: JsonKind.BOOLEAN,
    int: JsonKind.NUMBER,
    float: JsonKind.NUMBER,
    list: JsonKind.ARRAY,
    dict: JsonKind.OBJECT,
}
_FLOAT32_END = 2.0**128 - 2.0**103
"""The least number that rounds to infinity in single precision."""
_INTEGER_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


def kind_of(value: Any) -> JsonKind | None:
    """The JSON type of a parsed value; None for null."""
    return _KIND_OF_PYTHON_TYPE.get(type(value))


def wrong_type(expected: str | Collection[JsonKind], value: Any, place: Place) -> DecodeError:
    """The error that says what was expected."""
    wanted = expected if isinstance(expected, str) else _either([kind for kind in JsonKind if kind in expected])
    match value:
        case None:
            got = "null"
        case bool():
            got = JsonKind.BOOLEAN
        case int():
            got = "an integer"
        case _:
            got = _KIND_OF_PYTHON_TYPE[type(value)]
    where = path_text(place)
    subject = f"'{where}'" if where else "the body"
    return DecodeError(
        where or None, f"Invalid type for {subject}: expected {wanted}, but got {got} instead.", "invalid_type"
    )


def _either(kinds: list[JsonKind]) -> str:
    return kinds[0] if len(kinds) == 1 else f"{', '.join(kinds[:-1])} or {kinds[-1]}"


def invalid_value(what: str, place: Place) -> DecodeError:
    """The error that says what is wrong with a value of the right type."""
    where = path_text(place)
    return DecodeError(where, f"Invalid value for '{where}': {what}", "invalid_value")


@cache
def reader(field: FieldDescriptor) -> Read:
    """How an element of the field is read."""
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            return _read_bytes if field.type == FieldDescriptor.TYPE_BYTES else _read_string
        case FieldDescriptor.CPPTYPE_BOOL:
            return _read_bool
        case FieldDescriptor.CPPTYPE_ENUM:
            return _enum_reader(enum_type(field))
        case FieldDescriptor.CPPTYPE_FLOAT:
            return _read_float32
        case FieldDescriptor.CPPTYPE_DOUBLE:
            return _read_float64
        case _:
            return _integer_reader(*_INTEGER_RANGES[field.cpp_type])


@cache
def key_reader(field: FieldDescriptor) -> Read:
    """How a map's key is read: always from a JSON name."""
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return _read_string
    read = reader(field)

    def read_key(name: str, place: Place) -> Any:
        if name in ("true", "false"):
            return read(name == "true", place)
        # One text for each number, so that no two names are one key.
        if len(name) > 20 or not name.isascii() or not name.removeprefix("-").isdigit() or str(int(name)) != name:
            raise invalid_value("the name must be an integer in decimal digits.", place)
        return read(int(name), place)

    return read_key


@cache
def writer(field: FieldDescriptor) -> Write:
    """How an element of the field is written."""
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_ENUM:
            return _enum_writer(enum_type(field))
        case FieldDescriptor.CPPTYPE_FLOAT:
            return _write_float32
        case FieldDescriptor.CPPTYPE_DOUBLE:
            return _write_float64
        case _ if field.type == FieldDescriptor.TYPE_BYTES:
            return _write_bytes
        case _:
            return _write_as_it_is


def _read_string(value: Any, place: Place) -> str:
    if type(value) is not str:
        raise wrong_type(JsonKind.STRING, value, place)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise invalid_value("the text has half of a surrogate pair.", place) from error
    return value


def _read_bool(value: Any, place: Place) -> bool:
    if type(value) is not bool:
        raise wrong_type(JsonKind.BOOLEAN, value, place)
    return value


def _read_bytes(value: Any, place: Place) -> bytes:
    if type(value) is not str:
        raise wrong_type("base64 text", value, place)
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise invalid_value("it is not base64 text.", place) from error


def _read_float64(value: Any, place: Place) -> float:
    return _read_float(value, place, end=math.inf)


def _read_float32(value: Any, place: Place) -> float:
    return _read_float(value, place, end=_FLOAT32_END)


def _read_float(value: Any, place: Place, *, end: float) -> float:
    if type(value) is not float and type(value) is not int:
        raise wrong_type(JsonKind.NUMBER, value, place)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if abs(number) >= end:
        raise invalid_value("the number is too large.", place)
    return number


def _integer_reader(smallest: int, largest: int) -> Read:
    def read_integer(value: Any, place: Place) -> int:
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int:
            raise wrong_type("an integer", value, place)
        if not smallest <= value <= largest:
            raise invalid_value(
                f"expected an integer from {smallest} to {largest}, but got {abridged(str(value))}.", place
            )
        return value

    return read_integer


def _enum_reader(enum: EnumDescriptor) -> Read:
    rules = enum_rules(enum)
    known = ", ".join(f"'{name}'" for name in rules.names.values())

    def read_enum(value: Any, place: Place) -> int:
        if type(value) is not str:
            raise wrong_type(JsonKind.STRING, value, place)
        number = rules.numbers.get(value)
        if number is None:
            raise invalid_value(f"'{abridged(value)}'. Supported values are: {known}.", place)
        return number

    return read_enum


def abridged(text: str) -> str:
    """Text of the client's as it may stand in a message."""
    return text if len(text) <= 64 else f"{text[:61]}…"


def _enum_writer(enum: EnumDescriptor) -> Write:
    names = enum_rules(enum).names

    def write_enum(number: int) -> str:
        if number not in names:
            raise ValueError(f"{enum.full_name} has no JSON name for {number}")
        return names[number]

    return write_enum


def _write_as_it_is(value: Any) -> Any:
    return value


def _write_bytes(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _write_float64(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"JSON has no number {value}")
    return value


def _write_float32(value: float) -> float:
    """The shortest decimal that reads back as the same single-precision number."""
    if not math.isfinite(value):
        raise ValueError(f"JSON has no number {value}")
    for digits in (6, 7, 8):
        short = float(f"{value:.{digits}g}")
        if struct.unpack("f", struct.pack("f", short))[0] == value:
            return short
    return float(f"{value:.9g}")
