"""JSON documents → messages, by the rules of the message's descriptor. Knows no message by name."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from glimpse.dialect.options import descriptor_of
from glimpse.server.openai.document import RawText, not_json, parse
from glimpse.server.openai.field_values import Reading
from glimpse.server.openai.objects import read_message

_MessageT = TypeVar("_MessageT", bound=Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded(Generic[_MessageT]):
    """What a document says."""

    message: _MessageT
    """The message."""
    unknown: list[str]
    """JSON paths of members that no rule knows, those that are null left out."""
    extra: dict[str, Any]
    """The members of the outermost object that the caller reads itself, those that are null left out."""
    aliased: dict[str, str] = field(default_factory=dict[str, str])
    """JSON path by a field's own name → the path by which it was given, an outer one before those inside."""


def decode(
    document: bytes, message_class: type[_MessageT], *, extra_members: Collection[str] = ()
) -> Decoded[_MessageT]:
    """Reads a document. `extra_members` names members of the outermost object that are the caller's to read.

    Raises DecodeError for a document that is not JSON, or that does not say a message of this class.
    """
    try:
        return _decode(document, message_class, extra_members)
    except RecursionError as error:
        raise not_json("it is nested too deeply") from error


def _decode(document: bytes, message_class: type[_MessageT], extra_members: Collection[str]) -> Decoded[_MessageT]:
    value = parse(document)
    extra = _taken(value, extra_members) if isinstance(value, dict) else {}
    message = message_class()
    reading = Reading(raw=RawText(document), unknown=[], aliased={})
    read_message(descriptor_of(message_class), message, value, None, reading)
    return Decoded(message=message, unknown=reading.unknown, aliased=reading.aliased, extra=extra)


def _taken(members: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    taken = {name: members.pop(name, None) for name in names}
    return {name: value for name, value in taken.items() if value is not None}
