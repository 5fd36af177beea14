"""Decodes JSON documents into messages, by the rules of the dialect."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from glimpse.dialect.options import descriptor_of
from glimpse.server.openai.document import RawText, not_json, parse
from glimpse.server.openai.field_values import DecodeContext
from glimpse.server.openai.objects import read_message

_MessageT = TypeVar("_MessageT", bound=Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded(Generic[_MessageT]):
    """A decoded document."""

    message: _MessageT
    """The message."""
    unknown: list[str]
    """JSON paths of unknown members that are not null."""
    extra: dict[str, Any]
    """Members of the outermost object that the caller reads itself and that are not null."""
    aliased: dict[str, str] = field(default_factory=dict[str, str])
    """JSON path by a field's own name → the path that the client used. Outer paths come before inner ones."""


def decode(
    document: bytes, message_class: type[_MessageT], *, extra_members: Collection[str] = ()
) -> Decoded[_MessageT]:
    """Decodes a document.

    Args:
        document: the JSON text.
        message_class: the type of the message.
        extra_members: names of members of the outermost object that the caller reads itself.

    Raises:
        DecodeError: the document is not JSON, or does not describe a message of this type.
    """
    try:
        return _decode(document, message_class, extra_members)
    except RecursionError as error:
        raise not_json("nested too deeply") from error


def _decode(document: bytes, message_class: type[_MessageT], extra_members: Collection[str]) -> Decoded[_MessageT]:
    value = parse(document)
    extra = _pop_members(value, extra_members) if isinstance(value, dict) else {}
    message = message_class()
    context = DecodeContext(raw=RawText(document), unknown=[], aliased={})
    read_message(descriptor_of(message_class), message, value, None, context)
    return Decoded(message=message, unknown=context.unknown, aliased=context.aliased, extra=extra)


def _pop_members(members: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    popped = {name: members.pop(name, None) for name in names}
    return {name: value for name, value in popped.items() if value is not None}
