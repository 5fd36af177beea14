"""Errors about the arguments of `LLM`, and checks that several parsers share."""

from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any

from glimpse.engine.protocol.other_names import OtherName
from glimpse.media import errors
from glimpse.media.errors import MediaErrorCode
from glimpse.media.sources.source import MAX_UUID_CHARACTERS, CachedSource, DataSource, Source, parse_url_text


class InputError(ValueError):
    """An input that cannot be used. The message begins with the field at fault, such as `messages[0].content[1]`."""

    def __init__(self, field: str, message: str, code: MediaErrorCode | None = None) -> None:
        super().__init__(f"'{field}': {message}")
        self.code = code
        """Why a medium was refused; None if the error is not about the contents of a medium."""


blaming = partial(errors.blaming, InputError)
"""Raises InputError for a MediaError in its block, about this field."""


def known_fields(value: object, field: str, *, known: Sequence[str]) -> Mapping[str, Any]:
    """Returns the value, if it is a dict with no other keys than the known ones. Raises InputError."""
    if not isinstance(value, Mapping):
        raise InputError(field, f"expected a dict, got {type(value).__name__}")
    for name in value:
        if name not in known:
            raise InputError(f"{field}.{name}", f"unknown field, expected one of {', '.join(known)}")
    return value


def check_name(name: str, value: object, known: Collection[str], others: Mapping[str, OtherName], call: str) -> bool:
    """Returns whether an argument is one of `known`; False: it asks for nothing.

    Raises:
        InputError: it asks for something that does not exist.
        TypeError: there is no such argument.
    """
    if name in known:
        return True
    if (other := others.get(name)) is None:
        (*closest,) = get_close_matches(name, [*known, *others], n=1)
        hint = f"; did you mean {closest[0]!r}?" if closest else ""
        raise TypeError(f"{call} got an unexpected keyword argument {name!r}{hint}")
    try:
        other.check(value, f"{name}={value!r}")
    except ValueError as error:
        raise InputError(name, str(error)) from None
    return False


def parse_number(value: object, field: str, *, integer: bool) -> Any:
    """Returns the value, if it is a number or None. Raises InputError."""
    if value is None or (isinstance(value, int if integer else int | float) and not isinstance(value, bool)):
        return value
    raise InputError(field, f"expected {'an integer' if integer else 'a number'}, got {value!r}")


def parse_uuid(uuid: object, field: str) -> str | None:
    """Returns the uuid of a medium, which may be None. Raises InputError."""
    if uuid is None or (isinstance(uuid, str) and 1 <= len(uuid) <= MAX_UUID_CHARACTERS):
        return uuid
    raise InputError(field, f"expected a string of 1 to {MAX_UUID_CHARACTERS} characters")


def parse_url(url: object, field: str) -> Source:
    """Parses a URL, a data URL or base64. Raises InputError."""
    if not isinstance(url, str):
        raise InputError(field, f"expected a URL, got {type(url).__name__}")
    with blaming(field):
        return parse_url_text(url)


def parse_source(medium: object, field: str, uuid: str | None) -> Source | CachedSource | None:
    """Parses a medium that is not decoded: the bytes of a file, a URL, a data URL, base64, or None with a uuid.

    Args:
        medium: what the caller passed; None: the cached medium of this uuid.
        field: its path.
        uuid: the caller's name for it.

    Returns:
        None for other values, which may be decoded media.

    Raises:
        InputError: a string is no URL, or there is neither a medium nor a uuid.
    """
    match medium:
        case None:
            return by_reference(uuid, field)
        case bytes():
            return DataSource(data=medium)
        case str():
            return parse_url(medium, field)
        case _:
            return None


def by_reference(uuid: str | None, field: str) -> CachedSource:
    """Returns the source of a medium that is None. Raises InputError if it has no uuid either."""
    if uuid is None:
        raise InputError(field, "expected a medium, or the uuid of one that was passed before; got None")
    return CachedSource(uuid=uuid)
