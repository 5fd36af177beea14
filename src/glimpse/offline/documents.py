"""JSON documents of what callers of `LLM` pass: the server's codec and parsers read them, and name what is wrong."""

import json
import reprlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from google.protobuf.message import Message

from glimpse.dialect.openai import OPENAI
from glimpse.dialect.options import descriptor_of
from glimpse.engine.protocol.other_names import tell
from glimpse.media.errors import MediaErrorCode
from glimpse.offline.fields import InputError
from glimpse.server.call.context import CallContext
from glimpse.server.codec.codec import Codec
from glimpse.server.codec.document import DecodeError
from glimpse.server.codec.paths import json_path, with_sent_names
from glimpse.server.errors import InvalidRequest

_CODEC = Codec(OPENAI)
_NOTHING: Mapping[str, str] = MappingProxyType({})
_MessageT = TypeVar("_MessageT", bound=Message)
_T = TypeVar("_T")


def _none(_: object) -> None:
    """Replaces nothing."""


def parse(
    document: Mapping[str, object],
    message_class: type[_MessageT],
    function: Callable[[_MessageT, CallContext], _T],
    *,
    call: str,
    names: Mapping[str, str] = _NOTHING,
    reasons: Mapping[str, str] = _NOTHING,
    replace: Callable[[object], object] = _none,
) -> _T:
    """Parses a request that is made of a caller's arguments.

    Args:
        call: what was called, for errors about the whole document.
        names: path in the document → what the caller wrote there, inner paths first.
        reasons: path in the document → why a value there changes nothing.
        replace: returns what stands in the document for a value that JSON does not have, or None.

    Raises:
        InputError: the server would refuse the request.
    """
    aliased: dict[str, str] = {}
    try:
        members = (
            f"{json.dumps(name)}: {json_text(value, with_sent_names(name, names), replace)}"
            for name, value in document.items()
        )
        text = f"{{{', '.join(members)}}}"
        # A surrogate without its pair becomes an escape, which the codec refuses by its field.
        decoded = _CODEC.decode(text.encode(errors="backslashreplace"), message_class)
        aliased = decoded.aliased
        for path in decoded.ignored:
            tell(f"{with_sent_names(path, names)} changes nothing. {reasons.get(path, '')}".rstrip())
        context = CallContext()
        parsed = function(decoded.message, context)
        for path in context.ignored_fields:
            tell(f"{with_sent_names(json_path(OPENAI, descriptor_of(message_class), path), names)} changes nothing.")
        return parsed
    except DecodeError as error:
        path = with_sent_names(error.path, names) if error.path else call
        raise InputError(path, error.message.removeprefix(f"'{error.path}': ")) from None
    except InvalidRequest as error:
        path = json_path(OPENAI, descriptor_of(message_class), error.field)
        path = with_sent_names(with_sent_names(path, aliased), names)
        code = error.reason if isinstance(error.reason, MediaErrorCode) else None
        raise InputError(path, error.message.removeprefix(f"'{error.field}': "), code) from None


def json_text(value: object, field: str, replace: Callable[[object], object] = _none) -> str:
    """Returns a value as JSON; `replace` as in `parse`. Raises InputError if there is no JSON for it."""

    def plain(value: object) -> object:
        replaced = replace(value)
        return _plain(value) if replaced is None else replaced

    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=plain)
    except ValueError:
        raise InputError(field, f"expected a finite number, got {reprlib.repr(value)}") from None
    except (TypeError, RecursionError) as error:
        raise InputError(field, f"expected a value that JSON has, got {error}") from None


def _plain(value: object) -> object:
    """Returns what JSON has for a value of another type."""
    match value:
        case Mapping():
            return dict(value)
        case Sequence() if not isinstance(value, bytes | bytearray):
            return list(value)
        case _:
            raise TypeError(type(value).__name__)
