"""Chunks of a stream that differ only in one text, and perhaps a number: most tokens of an answer become one.

Their message is built once for the stream. A codec encodes what surrounds the text once too.
"""

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
from google.protobuf.message import Message

_to_json = msgspec.json.Encoder().encode


class TextTemplate:
    """A message that is sent with one text after another."""

    def __init__(self, message: Message, holder: Message, field_name: str, number_name: str | None = None) -> None:
        """
        Args:
            message: The template's own from now on.
            holder: The message within it that has the text.
            field_name: The holder's field for the text.
            number_name: The holder's field for the number, which documents have after the text. None: it has none.
        """
        self._message = message
        self._holder = holder
        self._field_name = field_name
        self.number_name = number_name

    def with_text(self, text: str, number: int = 0) -> Message:
        """Returns the template's message with this text and number. The next call changes it."""
        setattr(self._holder, self._field_name, text)
        if self.number_name is not None:
            setattr(self._holder, self.number_name, number)
        return self._message


class TextChunk(NamedTuple):
    """A message of a stream, as its template and its text."""

    template: TextTemplate
    text: str
    """Not empty."""
    number: int = 0
    """Without effect if the template has no number."""

    def serialize(self) -> bytes:
        """Returns the message in protobuf's encoding."""
        return self.template.with_text(self.text, self.number).SerializeToString()

    def copy(self) -> Message:
        """Returns a message of its own."""
        message = self.template.with_text(self.text, self.number)
        own = type(message)()
        own.CopyFrom(message)
        return own


@dataclass(frozen=True, slots=True)
class JsonChunks:
    """Encodes the chunks of one stream as JSON documents."""

    encode_message: Callable[[Message], bytes]
    """Encodes a whole message. Its texts are written as msgspec writes them."""
    _surroundings: dict[TextTemplate, tuple[bytes, bytes, bytes]] = field(
        default_factory=dict[TextTemplate, tuple[bytes, bytes, bytes]]
    )
    """Template → what its documents have before the text, between it and the number, and after both. Those without a
    number have all that follows the text between."""

    def encode(self, chunk: Message | TextChunk) -> bytes:
        """Returns a chunk as a JSON document. Raises as `encode_message` does."""
        if not isinstance(chunk, TextChunk):
            return self.encode_message(chunk)
        surroundings = self._surroundings.get(chunk.template)
        if surroundings is None:
            surroundings = self._surroundings[chunk.template] = self._surround(chunk.template)
        before, between, after = surroundings
        number = b"" if chunk.template.number_name is None else b"%d" % chunk.number
        return before + _to_json(chunk.text) + between + number + after

    def _surround(self, template: TextTemplate) -> tuple[bytes, bytes, bytes]:
        mark = uuid.uuid4().hex  # random: a client chooses ids, which the document has too
        before, rest = self.encode_message(template.with_text(mark)).split(_to_json(mark))
        if template.number_name is None:
            return before, rest, b""
        name = _to_json(template.number_name) + b":"
        between, after = rest.split(name + b"0")
        return before, between + name, after
