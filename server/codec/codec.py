"""JSON documents of a dialect to messages, and back."""

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from google.protobuf.message import Message

from glimpse.dialect.options import descriptor_of
from glimpse.dialect.rules import Dialect, JsonKind
from glimpse.server.codec.document import JsonDocument, not_json
from glimpse.server.codec.encode import MessageWriter
from glimpse.server.codec.field_values import DecodeContext
from glimpse.server.codec.objects import MessageReader
from glimpse.server.codec.scalars import wrong_type

_MessageT = TypeVar("_MessageT", bound=Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded(Generic[_MessageT]):
    """A decoded document."""

    message: _MessageT
    ignored: list[str]
    """JSON paths of members that have no effect and are not null, unknown ones among them."""
    streaming: bool
    """Whether the client asks for a stream."""
    aliased: dict[str, str] = field(default_factory=dict[str, str])
    """JSON path by a field's own name → the path that the client used. Outer paths come before inner ones."""


class Codec:
    """JSON documents of one dialect to messages, and back."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.encode = MessageWriter(dialect).document
        self._read = MessageReader(dialect).read

    def decode(
        self, document: bytes, message_class: type[_MessageT], *, stream_member: str | None = None
    ) -> Decoded[_MessageT]:
        """Decodes a document.

        Args:
            stream_member: the name of the boolean member of the outermost object that asks for a stream, if any.

        Raises:
            DecodeError: the document is not JSON, or does not describe a message of this type.
        """
        try:
            return self._decode(document, message_class, stream_member)
        except RecursionError as error:
            raise not_json("nested too deeply") from error

    def _decode(self, document: bytes, message_class: type[_MessageT], stream_member: str | None) -> Decoded[_MessageT]:
        text = JsonDocument(document)
        value = text.parse()
        streaming = value.pop(stream_member, None) if isinstance(value, dict) else None
        message = message_class()
        context = DecodeContext(raw=text.raw(), ignored=[], aliased={}, stream_member=stream_member)
        self._read(descriptor_of(message_class), message, value, None, context)
        if not isinstance(streaming, bool | None):
            raise wrong_type(JsonKind.BOOLEAN, streaming, (None, stream_member or ""))
        return Decoded(message=message, ignored=context.ignored, aliased=context.aliased, streaming=bool(streaming))
