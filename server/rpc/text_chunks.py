"""Chunks of a stream that differ only in one text: most tokens of an answer become one.

Their message is built once for the stream. A codec encodes what surrounds the text once too.
"""

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
from google.protobuf.message import Message

_to_json = msgspec.json.Encoder().encode


class TextTemplate:
    """A message that is sent with one text after another."""

    def __init__(self, message: Message, holder: Message, field_name: str) -> None:
        """
        Args:
            message: The template's own from now on.
            holder: The message within it that has the text.
            field_name: The holder's field for the text.
        """
        self._message = message
        self._holder = holder
        self._field_name = field_name

    def with_text(self, text: str) -> Message:
        """Returns the template's message with this text. The next call changes it."""
        setattr(self._holder, self._field_name, text)
        return self._message


@dataclass(frozen=True, slots=True)
class TextChunk:
    """A message of a stream, as its template and its text."""

    template: TextTemplate
    text: str
    """Not empty."""

    def serialize(self) -> bytes:
        """Returns the message in protobuf's encoding."""
        return self.template.with_text(self.text).SerializeToString()

    def copy(self) -> Message:
        """Returns a message of its own."""
        message = self.template.with_text(self.text)
        own = type(message)()
        own.CopyFrom(message)
        return own


@dataclass(frozen=True, slots=True)
class JsonChunks:
    """Encodes the chunks of one stream as JSON documents."""

    encode_message: Callable[[Message], bytes]
    """Encodes a whole message. Its texts are written as msgspec writes them."""
    _surroundings: dict[TextTemplate, tuple[bytes, bytes]] = field(
        default_factory=dict[TextTemplate, tuple[bytes, bytes]]
    )
    """Template → what its documents have before and after the text."""

    def encode(self, chunk: Message | TextChunk) -> bytes:
        """Returns a chunk as a JSON document. Raises as `encode_message` does."""
        if not isinstance(chunk, TextChunk):
            return self.encode_message(chunk)
        surroundings = self._surroundings.get(chunk.template)
        if surroundings is None:
            surroundings = self._surroundings[chunk.template] = self._surround(chunk.template)
        before, after = surroundings
        return before + _to_json(chunk.text) + after

    def _surround(self, template: TextTemplate) -> tuple[bytes, bytes]:
        mark = uuid.uuid4().hex  # random: a client chooses ids, which the document has too
        before, after = self.encode_message(template.with_text(mark)).split(_to_json(mark))
        return before, after
