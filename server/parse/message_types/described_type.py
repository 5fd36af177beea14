"""Message types that requests describe, and the texts that are their messages."""

import json
from dataclasses import dataclass

from google.protobuf import json_format
from google.protobuf.any_pb2 import Any
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from glimpse.engine.protocol.sampling_params import Grammar, GrammarKind
from glimpse.server.errors import InvalidRequest
from glimpse.server.parse.message_types.descriptors import DescriptorError, find_message_type
from glimpse.server.parse.message_types.grammar import message_grammar

MAX_DESCRIPTION_BYTES = 256 << 10
"""Bytes of the files that describe a type; they are parsed in milliseconds, in which nothing else runs."""
_MAX_REASON = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedType:
    """A message type in the files of a request."""

    name: str
    files: bytes
    """A serialized FileDescriptorSet."""

    @property
    def num_bytes(self) -> int:
        """The size of the files."""
        return len(self.files)

    def reader(self, field: str) -> "AnyReader":
        """Returns what reads the type's messages. Raises InvalidRequest, which names the file, type or field."""
        try:
            return AnyReader(find_message_type(self.files, self.name))
        except UnicodeDecodeError:
            raise InvalidRequest(field, "cannot be enforced: a name in the files is not UTF-8", "unsupported") from None
        except DescriptorError as error:
            raise InvalidRequest(field, f"cannot be enforced: {error}", "unsupported") from None


class AnyReader:
    """Reads texts as messages of one type, each in a `google.protobuf.Any`."""

    def __init__(self, descriptor: Descriptor) -> None:
        """Raises DescriptorError if no grammar can hold the type's JSON."""
        self.grammar = Grammar(kind=GrammarKind.LARK, text=message_grammar(descriptor))
        try:
            self._class = GetMessageClass(descriptor)
        except RecursionError:
            raise DescriptorError(f"{descriptor.full_name}: its messages are nested too deep in each other") from None

    def read(self, text: str) -> Any:
        """Returns the message that a text is. Raises ValueError with what is wrong."""
        answer = Any()
        answer.Pack(read_message(text, self._class()), deterministic=True)
        return answer


def read_message(text: str, message: Message) -> Message:
    """Reads the JSON of an empty message into it. Of two entries of a map with the same key, the last one counts.

    Raises:
        ValueError: the text is not the message's JSON.
    """
    try:
        json_format.ParseDict(json.loads(text), message)
        if not message.IsInitialized():
            raise ValueError("required fields are missing")
    except (ValueError, json_format.ParseError, RecursionError) as error:
        name = message.DESCRIPTOR.full_name
        raise ValueError(f"The text is not the JSON of a {name}: {str(error)[:_MAX_REASON]}") from None
    return message
