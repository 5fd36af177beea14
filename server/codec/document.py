"""Parses JSON text strictly, and keeps the text of single values."""

import json
from codecs import BOM_UTF8
from collections import Counter
from typing import Any, NoReturn

import msgspec

from glimpse.server.codec.long_strings import Shortened, shorten
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


class JsonDocument:
    """A JSON document."""

    def __init__(self, text: bytes) -> None:
        self._shortened = shorten(text.removeprefix(BOM_UTF8))  # which RFC 8259 lets readers ignore

    def parse(self) -> Any:
        """Returns its value.

        Raises:
            DecodeError: it is not JSON by RFC 8259, or an object has the same name twice.
            RecursionError: it is nested too deeply.
        """
        shortened = self._shortened
        try:
            text = shortened.document.decode()
            value = json.loads(text, object_pairs_hook=self._object, parse_constant=_refuse_constant)
        except UnicodeDecodeError as error:
            raise not_json(f"invalid UTF-8 at byte {shortened.original_byte(error.start)}") from error
        except json.JSONDecodeError as error:
            column = shortened.original_column(error.pos)
            raise not_json(f"{error.msg} at line {error.lineno}, column {column}") from error
        except ValueError as error:  # raised by `int` for numbers with thousands of digits
            raise not_json("a number has too many digits") from error
        return shortened.restored(value)

    def raw(self) -> "RawText":
        """Returns access to the text of single values."""
        return RawText(self._shortened)

    def _object(self, members: list[tuple[str, Any]]) -> dict[str, Any]:
        if strings := self._shortened.strings:
            members = [(strings.get(name, name), value) for name, value in members]
        return _object(members)


class RawText:
    """The text of single values of a document, exactly as sent."""

    def __init__(self, shortened: Shortened) -> None:
        self._shortened = shortened
        self._containers: dict[FieldPath, dict[str, msgspec.Raw] | list[msgspec.Raw]] = {}

    def at(self, path: FieldPath) -> str:
        """Returns the text of a value that the parsed document has."""
        return self._shortened.restored_text(bytes(self._raw(path)).decode())

    def _raw(self, path: FieldPath) -> msgspec.Raw:
        if path is None:
            return msgspec.Raw(self._shortened.document)
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
