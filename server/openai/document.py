"""JSON text → Python values, strictly. Knows no message."""

import json
from collections import Counter
from typing import Any, NoReturn

import msgspec

from glimpse.server.field_path import Place


class DecodeError(Exception):
    """A JSON document that does not say a message."""

    def __init__(self, path: str | None, message: str, code: str) -> None:
        super().__init__(message)
        self.path = path
        """The JSON path of the value at fault, such as "messages[0].role"; None for the whole document."""
        self.message = message
        self.code = code
        """invalid_json, invalid_type, invalid_value, missing_value, conflicting_values or unsupported."""


def parse(document: bytes) -> Any:
    """Raises DecodeError for what is not JSON by RFC 8259 and for a name given twice in an object.

    Raises RecursionError for a document that is nested too deeply.
    """
    try:
        return json.loads(document.decode(), object_pairs_hook=_object, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise not_json(f"it is not UTF-8 text (byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise not_json(f"{error.msg} at line {error.lineno}, column {error.colno}") from error
    except ValueError as error:  # what `int` says of numbers with thousands of digits
        raise not_json("a number in it has too many digits") from error


class RawText:
    """The text of single values of a document, as it was sent."""

    def __init__(self, document: bytes) -> None:
        self._document = document
        self._containers: dict[Place, dict[str, msgspec.Raw] | list[msgspec.Raw]] = {}

    def at(self, place: Place) -> str:
        """The text of the value at a place that the parsed document has."""
        return bytes(self._raw(place)).decode()

    def _raw(self, place: Place) -> msgspec.Raw:
        if place is None:
            return msgspec.Raw(self._document)
        outer, key = place
        container: Any = self._containers.get(outer)
        if container is None:
            kind = list[msgspec.Raw] if isinstance(key, int) else dict[str, msgspec.Raw]
            container = self._containers[outer] = _members(self._raw(outer), kind)
        return container[key]


def _members(text: msgspec.Raw, kind: Any) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as error:  # the one thing that `json` lets pass and msgspec does not
        raise not_json("it has half of a surrogate pair") from error


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(members)
    if len(values) != len(members):
        twice, _ = Counter(name for name, _ in members).most_common(1)[0]
        raise not_json(f"the name {json.dumps(twice)} is given twice in one object")
    return values


def _refuse_constant(text: str) -> NoReturn:
    raise not_json(f"{text} is no JSON value")


def not_json(why: str) -> DecodeError:
    """The error for a document that cannot be read at all."""
    return DecodeError(None, f"The body is not valid JSON: {why}.", "invalid_json")
