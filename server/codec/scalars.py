"""Converts single JSON values to and from values of scalar fields."""

import base64
import math
from collections.abc import Callable, Collection
from typing import Any, TypeAlias, cast

import numpy as np
from google.protobuf.descriptor import FieldDescriptor

from glimpse.dialect.options import enum_type
from glimpse.dialect.rules import FieldRules, JsonKind
from glimpse.media.sources.source import decode_base64
from glimpse.server.codec.document import DecodeError
from glimpse.server.field_path import FieldPath, path_text

Read: TypeAlias = Callable[[Any, FieldPath], Any]
"""(JSON value, its path for errors) → the field's value. Raises DecodeError."""
Write: TypeAlias = Callable[[Any], Any]
"""The field's value → a JSON value. Raises ValueError for a value that JSON does not have."""

_KIND_OF_PYTHON_TYPE = {
    str: JsonKind.STRING,
    bool: JsonKind.BOOLEAN,
    int: JsonKind.NUMBER,
    float: JsonKind.NUMBER,
    list: JsonKind.ARRAY,
    dict: JsonKind.OBJECT,
}
_FLOAT32_OVERFLOW = 2.0**128 - 2.0**103
"""The smallest number that rounds to infinity in single precision."""
_INTEGER_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


def kind_of(value: Any) -> JsonKind | None:
    """Returns the JSON type of a parsed value. None for null."""
    return _KIND_OF_PYTHON_TYPE.get(type(value))


def wrong_type(expected: str | Collection[JsonKind], value: Any, path: FieldPath) -> DecodeError:
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
    field = path_text(path)
    subject = f"'{field}'" if field else "The body"
    return DecodeError(field or None, f"{subject}: expected {wanted}, got {got}", "invalid_type")


def _either(kinds: list[JsonKind]) -> str:
    return kinds[0] if len(kinds) == 1 else f"{', '.join(kinds[:-1])} or {kinds[-1]}"


def decode_error(what: str, path: FieldPath, code: str = "invalid_value") -> DecodeError:
    """Returns the error for the value at this path. `what` is "expected …, got …"."""
    field = path_text(path)
    return DecodeError(field, f"'{field}': {what}", code)


def reader(field: FieldRules) -> Read:
    """Returns the function that reads an element of the field."""
    match field.descriptor.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            return _read_bytes if field.descriptor.type == FieldDescriptor.TYPE_BYTES else _read_string
        case FieldDescriptor.CPPTYPE_BOOL:
            return _read_bool
        case FieldDescriptor.CPPTYPE_ENUM:
            return _enum_reader(field)
        case FieldDescriptor.CPPTYPE_FLOAT:
            return _float_reader(_FLOAT32_OVERFLOW)
        case FieldDescriptor.CPPTYPE_DOUBLE:
            return _float_reader(math.inf)
        case _:
            return _integer_reader(*_INTEGER_RANGES[field.descriptor.cpp_type], field)


def key_reader(field: FieldRules) -> Read:
    """Returns the function that reads a key of a map from its JSON name."""
    if field.descriptor.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return _read_string
    read = reader(field)

    def read_key(name: str, path: FieldPath) -> Any:
        if name in ("true", "false"):
            return read(name == "true", path)
        # Each number has one spelling, so that two names are never one key.
        if len(name) > 20 or not name.isascii() or not name.removeprefix("-").isdigit() or str(int(name)) != name:
            raise decode_error(f"expected a decimal integer as the name, got '{truncated(name)}'", path)
        return read(int(name), path)

    return read_key


def writer(field: FieldRules) -> Write:
    """Returns the function that writes an element of the field."""
    match field.descriptor.cpp_type:
        case FieldDescriptor.CPPTYPE_ENUM:
            return _enum_writer(field)
        case FieldDescriptor.CPPTYPE_FLOAT:
            return _write_float32
        case FieldDescriptor.CPPTYPE_DOUBLE:
            return _write_float64
        case _ if field.descriptor.type == FieldDescriptor.TYPE_BYTES:
            return _write_bytes
        case _:
            return write_unchanged


def _read_string(value: Any, path: FieldPath) -> str:
    if type(value) is not str:
        raise wrong_type(JsonKind.STRING, value, path)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise decode_error("expected Unicode text, got an unpaired surrogate", path) from error
    return value


def _read_bool(value: Any, path: FieldPath) -> bool:
    if type(value) is not bool:
        raise wrong_type(JsonKind.BOOLEAN, value, path)
    return value


def _read_bytes(value: Any, path: FieldPath) -> bytes:
    if type(value) is not str:
        raise wrong_type("base64 text", value, path)
    try:
        return decode_base64(value)
    except ValueError as error:  # not base64, or no ASCII
        raise decode_error("expected base64 text", path) from error


def _float_reader(overflow: float) -> Read:
    def read_float(value: Any, path: FieldPath) -> float:
        if type(value) is not float and type(value) is not int:
            raise wrong_type(JsonKind.NUMBER, value, path)
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if abs(number) >= overflow:
            raise decode_error(f"expected a smaller number, got {truncated(str(value))}", path)
        return number

    return read_float


def read_float32s(value: Any, path: FieldPath) -> bytes:
    """Returns an array of numbers as packed little-endian float32 values."""
    if type(value) is not list:
        raise wrong_type(JsonKind.ARRAY, value, path)
    read = _float_reader(_FLOAT32_OVERFLOW)
    numbers = [read(element, (path, index)) for index, element in enumerate(cast("list[Any]", value))]
    return np.array(numbers, dtype="<f4").tobytes()


def write_float32s(data: bytes) -> list[float]:
    """Returns packed little-endian float32 values as numbers.

    They are written with all digits of the equal float64 numbers: the shortest decimals of thousands take too long.
    """
    values = np.frombuffer(data, dtype="<f4")
    if not np.isfinite(values).all():
        raise ValueError("JSON has no numbers for values that are not finite")
    return values.tolist()


def _integer_reader(smallest: int, largest: int, rules: FieldRules) -> Read:
    counts = rules.is_list or rules.is_map  # the bounds are those of the number of elements then
    least = None if counts or rules.min is None else int(rules.min)
    most = None if counts or rules.max is None else int(rules.max)

    def wanted(value: int) -> str:
        """Names the bounds that are declared: where a type of the protos ends is nothing that a client knows."""
        if most is not None:
            return f"an integer from {smallest if least is None else least} to {most}"
        if value > largest:
            return "a smaller integer"
        return "a larger integer" if smallest and least is None else f"an integer of at least {least or 0}"

    def read_integer(value: Any, path: FieldPath) -> int:
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int:
            raise wrong_type("an integer", value, path)
        if not smallest <= value <= largest:
            raise decode_error(f"expected {wanted(value)}, got {truncated(str(value))}", path)
        return value

    return read_integer


def _enum_reader(field: FieldRules) -> Read:
    numbers = field.enum.numbers if field.enum else {}
    known = ", ".join(f"'{name}'" for name in (field.enum.names.values() if field.enum else ()))

    def read_enum(value: Any, path: FieldPath) -> int:
        if type(value) is not str:
            raise wrong_type(JsonKind.STRING, value, path)
        number = numbers.get(value)
        if number is None:
            raise decode_error(f"expected one of {known}, got '{truncated(value)}'", path)
        return number

    return read_enum


def truncated(text: str) -> str:
    """Returns a client's text, short enough for an error message."""
    return text if len(text) <= 64 else f"{text[:61]}…"


def _enum_writer(field: FieldRules) -> Write:
    names = field.enum.names if field.enum else {}
    name = enum_type(field.descriptor).full_name

    def write_enum(number: int) -> str:
        if number not in names:
            raise ValueError(f"{name} has no JSON name for {number}")
        return names[number]

    return write_enum


def write_unchanged(value: Any) -> Any:
    """Writes a value that JSON has as it is."""
    return value


def _write_bytes(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _write_float64(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"JSON has no number {value}")
    return value


def _write_float32(value: float) -> float:
    """Returns the shortest decimal that reads back as the same single-precision number."""
    if not math.isfinite(value):
        raise ValueError(f"JSON has no number {value}")
    return float(str(np.float32(value)))
