"""Reads options' values and explains wrong ones in one sentence, for the command line and for `LLM` alike."""

import re
import reprlib
from collections.abc import Mapping
from typing import Any

from pydantic import ByteSize, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

_SIZE = TypeAdapter(ByteSize)
_BYTES = "_bytes"
_TOKENS = ("max_model_len", "max_batch_tokens")
_COUNT = re.compile(r"(\d+(?:\.\d+)?)([kmg])|(\d+)([KMG])")
_POWERS = {"k": 1, "m": 2, "g": 3}

_EXPECTED: Mapping[str, str] = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "byte_size": "a size such as 512MiB",
    "byte_size_unit": "a size such as 512MiB",
    "dataclass_type": "a JSON object",
    "dict_type": "a dict",
    "extra_forbidden": "a known name",
    "float_parsing": "a number",
    "float_type": "a number",
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "int_from_float": "an integer",
    "int_parsing": "an integer",
    "int_type": "an integer",
    "ip_any_network": "a network such as 10.1.0.0/16",
    "less_than_equal": "at most {le:g}",
    "missing": "one more value",
    "model_type": "a JSON object",
    "path_not_directory": "a folder that exists",
    "path_not_file": "a file that exists",
    "string_too_long": "at most {max_length} characters",
    "string_too_short": "at least {min_length} character",
    "string_type": "a string",
    "too_long": "at most {max_length} elements",
    "tuple_type": "a list",
    "unexpected_keyword_argument": "a known name",
}
"""By Pydantic's type of error, where its own message is less clear."""


def read_units(options: Mapping[str, object]) -> dict[str, Any]:
    """Returns options, with numbers for texts such as "4GiB" and, of tokens, "8k" (8000) or "8K" (8192).

    Anything else is as it was, for its field to refuse.
    """
    return {
        name: read_size(value) if name.endswith(_BYTES) else _count(value) if name in _TOKENS else value
        for name, value in options.items()
    }


def read_size(value: object) -> Any:
    """Returns the number of bytes of a text such as "4GiB", and anything else as it is."""
    try:
        return int(_SIZE.validate_python(value)) if isinstance(value, str) else value
    except ValidationError:
        return value


def _count(value: object) -> object:
    if not isinstance(value, str) or (match := _COUNT.fullmatch(value)) is None:
        return value
    decimal, small, binary, large = match.groups()
    if decimal:
        return round(float(decimal) * 1000 ** _POWERS[small])
    return int(binary) * 1024 ** _POWERS[large.lower()]


def explain(error: ErrorDetails) -> str:
    """Returns "expected X, got Y" for one of Pydantic's errors."""
    if error["type"] == "int_parsing" and str(error["loc"][-1]).endswith(_BYTES):
        error["type"] = "byte_size"  # sizes take a unit too
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error" and (not message.startswith("expected ") or ", got " in message):
        return message
    if error["type"] in _EXPECTED:
        expected = _EXPECTED[error["type"]].format_map(error.get("ctx", {}))
    else:  # may have braces of its own
        expected = message.removeprefix("Input should be ").removeprefix("expected ")
    return f"expected {expected}, got {reprlib.repr(error['input'])}"
