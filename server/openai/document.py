"""Parses JSON text strictly, and keeps the text of single values."""

import json
from collections import Counter
from typing import Any, NoReturn

import msgspec

from glimpse.server.field_path import FieldPath


class DecodeError(Exception):
    """A JSON document that does not describe a message."""

    def __init__(self, path: str | None, message: str, code: str) -> None:
        super().__init__(message)
        self.path = path
        """The JSON path of the value at fault, such as "messages[0].role". None for the whole document."""
        self.message = message
        self.code = code
        """invalid_json, invalid_type, invalid_value, missing_value, conflicting_values or unsupported."""


def parse(document: bytes) -> Any:
    """Parses a document.

    Raises:
        DecodeError: it is not JSON by RFC 8259, or an object has the same name twice.
        RecursionError: it is nested too deeply.
    """
    try:
        return json.loads(document.decode(), object_pairs_hook=_object, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise not_json(f"invalid UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise not_json(f"{error.msg} at line {error.lineno}, column {error.colno}") from error
    except ValueError as error:  # raised by `int` for numbers with thousands of digits
        raise not_json("a number has too many digits") from error


class RawText:
    """The text of single values of a document, exactly as sent."""

    def __init__(self, document: bytes) -> None:
        self._document = document
        self._containers: dict[FieldPath, dict[str, msgspec.Raw] | list[msgspec.Raw]] = {}

    def at(self, path: FieldPath) -> str:
        """Returns the text of a value that the parsed document has."""
        return bytes(self._raw(path)).decode()

    def _raw(self, path: FieldPath) -> msgspec.Raw:
        if path is None:
            return msgspec.Raw(self._document)
        outer, key = path
        container: Any = self._containers.get(outer)
        if container is None:
            kind = list[msgspec.Raw] if isinstance(key, int) else dict[str, msgspec.Raw]
            container = self._containers[outer] = _members(self._raw(outer), kind)
        return container[key]


def _members(text: msgspec.Raw, kind: Any) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as error:  # the only text that `json` accepts and msgspec does not
        raise not_json("unpaired surrogate") from error


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(members)
    if len(values) != len(members):
        duplicate, _ = Counter(name for name, _ in members).most_common(1)[0]
        raise not_json(f"duplicate name {json.dumps(duplicate)} in an object")
    return values


def _refuse_constant(text: str) -> NoReturn:
    raise not_json(f"{text} is not a JSON value")


def not_json(reason: str) -> DecodeError:
    """Returns the error for a document that cannot be parsed."""
    return DecodeError(None, f"The body is not valid JSON: {reason}.", "invalid_json")
