"""Reads fields that contain JSON as text."""

import json
from typing import Any

from glimpse.server.errors import InvalidRequest

MAX_CHARACTERS = 1 << 20
"""The longest JSON text in a field; parsing it takes milliseconds, in which nothing else runs."""


def parse_object(
    text: str, field: str, expected: str = "a JSON object", *, wrong_type: str = "invalid_type"
) -> dict[str, Any]:
    """Returns the object that a text spells. Raises InvalidRequest; `wrong_type` is its reason for another value."""
    if len(text) > MAX_CHARACTERS:
        raise InvalidRequest(field, f"expected at most {MAX_CHARACTERS} characters of JSON, got {len(text)}")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(field, f"expected {expected}, got text that is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidRequest(field, f"expected {expected}, got another JSON value", wrong_type)
    return value
