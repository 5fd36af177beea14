"""Where a value stands inside of a message or a document, and how that is written."""

import json
from typing import TypeAlias

MAX_NAME_CHARACTERS = 64

Place: TypeAlias = "tuple[Place, str | int] | None"
"""The place of what holds the value, and the value's name or index there; None for the outermost."""


def path_text(place: Place) -> str:
    """The place as text, such as "messages[0].role"; empty for the outermost."""
    if place is None:
        return ""
    outer, key = place
    before = path_text(outer)
    if isinstance(key, int):
        return f"{before}[{key}]"
    # Clients name members too, at any length.
    key = key if len(key) <= MAX_NAME_CHARACTERS else f"{key[: MAX_NAME_CHARACTERS - 3]}..."
    if not (key.isascii() and key.replace("-", "_").isidentifier()):
        return f"{before}[{_quoted(key)}]"
    return f"{before}.{key}" if before else key


def _quoted(key: str) -> str:
    # Places stand in headers too, which take no control character; json escapes them all but this one.
    return json.dumps(key).replace("\x7f", "\\u007f")
