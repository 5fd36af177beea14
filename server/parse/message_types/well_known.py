"""JSON Schemas of protobuf's scalars and well-known types, as proto3's JSON has them.

A value that matches one is a value of the type. Numbers are the exception: JSON can have larger ones than a float has.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from google.protobuf.descriptor import FieldDescriptor

Schema: TypeAlias = dict[str, Any]


def integer_pattern(least: int, most: int) -> str:
    """Returns a regular expression for integers. `least` is 0 or negative; both have two digits or more, or are 0."""
    positive = f"[1-9][0-9]{{0,{len(str(most)) - 2}}}|{_up_to(str(most))}"
    if least == 0:
        return f"0|{positive}"
    negative = f"[1-9][0-9]{{0,{len(str(-least)) - 2}}}|{_up_to(str(-least))}"
    return f"0|{positive}|-(?:{negative})"


def _up_to(largest: str) -> str:
    """Returns an expression for the integers of as many digits as the largest that are not larger."""
    parts = [
        f"{largest[:index]}[{int(index == 0)}-{int(digit) - 1}][0-9]{{{len(largest) - index - 1}}}"
        for index, digit in enumerate(largest)
        if int(digit) > (index == 0)
    ]
    return "|".join((*parts, largest))


def _matching(pattern: str) -> Schema:
    return {"type": "string", "pattern": f"^(?:{pattern})$"}


_RANGES: Mapping[int, tuple[int, int]] = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_INT32, _UINT32, _INT64, _UINT64 = _RANGES


def _whole(cpp_type: int) -> Schema:
    least, most = _RANGES[cpp_type]
    return {"type": "integer", "minimum": least, "maximum": most}


_NUMBER: Schema = {"type": "number"}
_SCALARS: Mapping[int, Schema] = {
    FieldDescriptor.CPPTYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.CPPTYPE_DOUBLE: _NUMBER,
    FieldDescriptor.CPPTYPE_FLOAT: _NUMBER,
    FieldDescriptor.CPPTYPE_STRING: {"type": "string"},
    _INT32: _whole(_INT32),
    _UINT32: _whole(_UINT32),
    _INT64: {"$ref": "#/$defs/int64-text"},
    _UINT64: {"$ref": "#/$defs/uint64-text"},
}
_BYTES: Schema = {"$ref": "#/$defs/base64-text"}
TEXTS: Mapping[str, Schema] = {
    "int64-text": _matching(integer_pattern(*_RANGES[_INT64])),
    "uint64-text": _matching(integer_pattern(*_RANGES[_UINT64])),
    "base64-text": _matching("(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"),
}
"""Definitions of scalars whose patterns are long. No type has such a name."""


def scalar_schema(field: FieldDescriptor) -> Schema:
    """Returns the schema of a field's values that are neither messages nor of an enum. It may refer to `TEXTS`."""
    return _BYTES if field.type == FieldDescriptor.TYPE_BYTES else _SCALARS[field.cpp_type]


def key_pattern(key: FieldDescriptor) -> str | None:
    """Returns the pattern of a map's keys; None: any string is a key."""
    if key.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return None
    if key.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return "^(?:true|false)$"
    return f"^(?:{integer_pattern(*_RANGES[key.cpp_type])})$"


_FRACTION = r"(?:\.(?:[0-9]{3}|[0-9]{6}|[0-9]{9}))?"
_LEAP_YEAR = "[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00"
_DAY = "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8])"
_YEAR = "000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3}"
_DATE = f"(?:(?:{_YEAR})-(?:{_DAY})|(?:{_LEAP_YEAR})-02-29)"
_PATH = r"[a-z][a-zA-Z0-9]*(?:\.[a-z][a-zA-Z0-9]*)*"

_VALUE = "google.protobuf.Value"
WELL_KNOWN: Mapping[str, Callable[[Callable[[str], Schema | None]], Schema]] = {
    "google.protobuf.Timestamp": lambda _: _matching(f"{_DATE}T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]{_FRACTION}Z"),
    "google.protobuf.Duration": lambda _: _matching(f"-?(?:0|[1-9][0-9]{{0,10}}){_FRACTION}s"),
    "google.protobuf.FieldMask": lambda _: _matching(f"(?:{_PATH}(?:,{_PATH})*)?"),
    "google.protobuf.Struct": lambda inner: {
        "type": "object",
        "additionalProperties": _or_nothing(inner(_VALUE)),
    },
    "google.protobuf.ListValue": lambda inner: _list_of(inner(_VALUE)),
    _VALUE: lambda inner: {
        "anyOf": [
            {"type": ["null", "boolean", "number", "string"]},
            *filter(None, map(inner, ("google.protobuf.Struct", "google.protobuf.ListValue"))),
        ]
    },
}
"""Full name → the schema, made with a function that returns that of another type, or None where nesting ends."""


WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
)
"""Full names of messages that are their only field's value in JSON."""


def _or_nothing(schema: Schema | None) -> Schema | bool:
    return False if schema is None else schema


def _list_of(schema: Schema | None) -> Schema:
    return {"type": "array", "maxItems": 0} if schema is None else {"type": "array", "items": schema}
