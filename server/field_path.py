"""The path of a value within a message or a JSON document, and its text."""

import json
from typing import TypeAlias

MAX_NAME_CHARACTERS = 64

FieldPath: TypeAlias = "tuple[FieldPath, str | int] | None"
"""The path of the enclosing value, and the value's name or index in it. None for the outermost value."""


def path_text(path: FieldPath) -> str:
    """Returns the path as text, such as "messages[0].role". Empty for the outermost value."""
    if path is None:
        return ""
    outer, key = path
    before = path_text(outer)
    if isinstance(key, int):
        return f"{before}[{key}]"
    # Clients choose some names, of any length.
    key = key if len(key) <= MAX_NAME_CHARACTERS else f"{key[: MAX_NAME_CHARACTERS - 3]}..."
    if not (key.isascii() and key.replace("-", "_").isidentifier()):
        return f"{before}[{_quoted(key)}]"
    return f"{before}.{key}" if before else key


def _quoted(key: str) -> str:
    # Paths are sent in headers, which allow no control characters. json escapes all of them except DEL.
    return json.dumps(key).replace("\x7f", "\\u007f")
