"""Rules of Lark for protobuf's scalars and well-known types, as proto3's JSON has them.

A text that matches one is a value of the type: numbers have no more digits and no larger exponents than their field can
hold.
"""

from collections.abc import Callable, Mapping

from google.protobuf.descriptor import FieldDescriptor


def integer_pattern(least: int, most: int) -> str:
    """Returns a regular expression for integers. `least` is 0 or negative; both have two digits or more, or are 0."""
    positive = f"[1-9][0-9]{{0,{len(str(most)) - 2}}}|{_up_to(str(most))}"
    if least == 0:
        return f"0|{positive}"
    negative = f"[1-9][0-9]{{0,{len(str(-least)) - 2}}}|{_up_to(str(-least))}"
    return f"0|{positive}|-(?:{negative})"


def number_pattern(largest: float) -> str:
    """Returns a regular expression for numbers that are not larger than one of at least 1e20, negative ones included.

    Of numbers with an exponent, it leaves out those of more than 17 digits before the point.
    """
    mantissa, exponent = f"{largest!r}".split("e")
    first, fraction, most = int(mantissa[0]), mantissa[2:], int(exponent)
    plain = rf"(?:0|[1-9][0-9]{{0,{most - 1}}})(?:\.[0-9]+)?"
    scientific = rf"[0-9](?:\.[0-9]+)?[eE]{_exponent(most - 1)}"
    of_long = rf"[1-9][0-9]{{1,16}}(?:\.[0-9]+)?[eE]{_exponent(most - 17)}"
    largest_ones = rf"(?:[0-{first - 1}](?:\.[0-9]+)?|{first}(?:\.(?:{_fraction_up_to(fraction)}))?)[eE]\+?{most}"
    return f"-?(?:{plain}|{scientific}|{of_long}|{largest_ones})"


def _exponent(most: int) -> str:
    """Returns an expression for exponents; a positive one has at most one leading zero."""
    return rf"(?:-[0-9]{{1,3}}|\+?0?(?:{integer_pattern(0, most)}))"


def _up_to(largest: str) -> str:
    """Returns an expression for the integers of as many digits as the largest that are not larger."""
    parts = [
        f"{largest[:index]}[{int(index == 0)}-{int(digit) - 1}][0-9]{{{len(largest) - index - 1}}}"
        for index, digit in enumerate(largest)
        if int(digit) > (index == 0)
    ]
    return "|".join((*parts, largest))


def _fraction_up_to(largest: str) -> str:
    """Returns an expression for the digits of fractions that are not larger."""
    parts = [f"{largest[:index]}[0-{int(digit) - 1}][0-9]*" for index, digit in enumerate(largest) if digit != "0"]
    beginnings = [largest[:index] for index in range(1, len(largest))]
    return "|".join((*parts, *beginnings, f"{largest}0*"))


_RANGES: Mapping[int, tuple[str, int, int]] = {
    FieldDescriptor.CPPTYPE_INT32: ("INT32", -(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: ("UINT32", 0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: ("INT64", -(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: ("UINT64", 0, 2**64 - 1),
}
"""C++ type → its terminal, least and largest number."""
_SCALARS: Mapping[int, str] = {
    FieldDescriptor.CPPTYPE_BOOL: "BOOL",
    FieldDescriptor.CPPTYPE_DOUBLE: "DOUBLE",
    FieldDescriptor.CPPTYPE_FLOAT: "FLOAT",
    FieldDescriptor.CPPTYPE_STRING: "STRING",
    FieldDescriptor.CPPTYPE_INT32: "INT32",
    FieldDescriptor.CPPTYPE_UINT32: "UINT32",
    FieldDescriptor.CPPTYPE_INT64: "INT64_TEXT",
    FieldDescriptor.CPPTYPE_UINT64: "UINT64_TEXT",
}
_LARGEST_FLOAT = (2 - 2**-23) * 2.0**127
_LARGEST_DOUBLE = (2 - 2**-52) * 2.0**1023

_FRACTION = r"(?:\.(?:[0-9]{3}|[0-9]{6}|[0-9]{9}))?"
_LEAP_YEAR = "[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00"
_DAY = "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8])"
_YEAR = "000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3}"
_DATE = f"(?:(?:{_YEAR})-(?:{_DAY})|(?:{_LEAP_YEAR})-02-29)"
_PATH = r"[a-z][a-zA-Z0-9]*(?:\.[a-z][a-zA-Z0-9]*)*"

TERMINALS: Mapping[str, str] = {
    "SPACE": r"/ |\n(?: {0,32}|\t{0,8})/",  # a blank, or a line break and indentation
    "OPEN": '"{" SPACE?',
    "CLOSE": 'SPACE? "}"',
    "BEGIN": '"[" SPACE?',
    "END": 'SPACE? "]"',
    "COMMA": '"," SPACE?',
    "COLON": '":" SPACE?',
    "STRING": r'/"(?:[^"\\\x00-\x1f\x7f]|\\["\\bfnrt])*"/',
    "BOOL": "/true|false/",
    "DOUBLE": f"/{number_pattern(_LARGEST_DOUBLE)}/",
    "FLOAT": f"/{number_pattern(_LARGEST_FLOAT)}/",
    **{name: f"/{integer_pattern(least, most)}/" for name, least, most in _RANGES.values()},
    **{f"{name}_TEXT": rf'"\"" {name} "\""' for name, _, _ in _RANGES.values()},
    "BOOL_TEXT": r'"\"" BOOL "\""',
    "BASE64": r'/"(?:[A-Za-z0-9+\/]{4})*(?:[A-Za-z0-9+\/]{2}==|[A-Za-z0-9+\/]{3}=)?"/',
    "TIMESTAMP": f'/"{_DATE}T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]{_FRACTION}Z"/',
    "DURATION": f'/"-?(?:0|[1-9][0-9]{{0,10}}){_FRACTION}s"/',
    "FIELD_MASK": f'/"(?:{_PATH}(?:,{_PATH})*)?"/',
}
"""Name → its definition."""


def scalar(field: FieldDescriptor) -> str:
    """Returns the terminal of a field's values that are neither messages nor of an enum."""
    return "BASE64" if field.type == FieldDescriptor.TYPE_BYTES else _SCALARS[field.cpp_type]


def map_key(key: FieldDescriptor) -> str:
    """Returns the terminal of a map's keys."""
    if key.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return "STRING"
    return "BOOL_TEXT" if key.cpp_type == FieldDescriptor.CPPTYPE_BOOL else f"{_RANGES[key.cpp_type][0]}_TEXT"


def list_of(value: str | None) -> str:
    """Returns a list of values; None: an empty one."""
    return "BEGIN END" if value is None else f"BEGIN ({value} (COMMA {value})*)? END"


def object_of(key: str, value: str | None) -> str:
    """Returns an object with any keys that match; None: an empty one."""
    return "OPEN CLOSE" if value is None else f"OPEN ({key} COLON {value} (COMMA {key} COLON {value})*)? CLOSE"


_VALUE, _STRUCT, _LIST = (f"google.protobuf.{name}" for name in ("Value", "Struct", "ListValue"))
WELL_KNOWN: Mapping[str, Callable[[Callable[[str], str | None]], str]] = {
    "google.protobuf.Timestamp": lambda _: "TIMESTAMP",
    "google.protobuf.Duration": lambda _: "DURATION",
    "google.protobuf.FieldMask": lambda _: "FIELD_MASK",
    _STRUCT: lambda inner: object_of("STRING", inner(_VALUE)),
    _LIST: lambda inner: list_of(inner(_VALUE)),
    _VALUE: lambda inner: " | ".join(
        ('"null"', "BOOL", "DOUBLE", "STRING", *filter(None, map(inner, (_STRUCT, _LIST)))),
    ),
}
"""Full name → the rule, made with a function that returns that of another type, or None where nesting ends."""


WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
)
"""Full names of messages that are their only field's value in JSON."""
