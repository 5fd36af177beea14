"""Explains an option's wrong value in one sentence, for the command line and for `LLM` alike."""

import reprlib
from collections.abc import Mapping

from pydantic_core import ErrorDetails

_EXPECTED: Mapping[str, str] = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "byte_size": "a size such as 512MiB",
    "byte_size_unit": "a size such as 512MiB",
    "dict_type": "a dict",
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
}
"""By Pydantic's type of error, where its own message is less clear."""


def explain(error: ErrorDetails) -> str:
    """Returns "expected X, got Y" for one of Pydantic's errors."""
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error" and (not message.startswith("expected ") or ", got " in message):
        return message
    if error["type"] in _EXPECTED:
        expected = _EXPECTED[error["type"]].format_map(error.get("ctx", {}))
    else:  # may have braces of its own
        expected = message.removeprefix("Input should be ").removeprefix("expected ")
    return f"expected {expected}, got {reprlib.repr(error['input'])}"
