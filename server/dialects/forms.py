"""Reads a form with a file as the requests of a client-streaming method: its pieces, and last the header.

Members may come in any order, and files are long: what precedes the file cannot wait for what follows it.
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from google.api.httpbody_pb2 import HttpBody
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from glimpse.dialect.options import message_type
from glimpse.dialect.rules import Dialect, JsonKind
from glimpse.json.v1.annotations_pb2 import FileForm
from glimpse.server.call.context import CallContext
from glimpse.server.call.offload import run_sized
from glimpse.server.codec.codec import Codec
from glimpse.server.codec.document import DecodeError
from glimpse.server.errors import InvalidRequest
from glimpse.server.rpc.form_parser import FormEvent, FormFile, FormParser, FormText
from glimpse.server.rpc.http_bodies import PacedBody

_INTEGER = re.compile(r"-?[0-9]{1,20}")
_QUOTED = re.compile(r'^\["(.*)"\]$')
"""The path of a member whose name has brackets."""
_BOOLEANS: Mapping[str, bool] = {"true": True, "false": False}


class FormRequests:
    """The requests that a form is, read once."""

    def __init__(
        self, form: FileForm, request_type: Descriptor, codec: Codec, chunks: AsyncIterator[HttpBody], call: CallContext
    ) -> None:
        """`form`: which fields the form's members set."""
        self.ignored: list[str] = []
        """Paths of members that have no effect; complete once the last request was taken."""
        self.aliased: dict[str, str] = {}
        """JSON path by a field's own name → the path that the client used."""
        self._form = form
        self._request_class = GetMessageClass(request_type)
        self._header_type = message_type(request_type.fields_by_name[form.header])
        self._codec = codec
        self._body = PacedBody(chunks, lambda chunk: len(chunk.data))
        self._call = call
        self._members: dict[str, str] = {}
        self._filename: str | None = None
        """Set once the file has begun."""

    async def requests(self) -> AsyncGenerator[Message]:
        """Yields the requests. Raises InvalidRequest or DecodeError."""
        chunk = await self._body.next()
        parser = FormParser("" if chunk is None else chunk.content_type)
        while chunk is not None:
            for event in await run_sized(self._call.client, len(chunk.data), parser.feed, chunk.data):
                if (piece := self._read(event)) is not None:
                    yield self._request_class(**{self._form.chunk: piece})
            chunk = await self._body.next()
        parser.close()
        if self._filename is None:
            raise InvalidRequest(self._form.file, "expected a file, got none", "missing_value")
        yield self._request_class(**{self._form.header: self._header()})

    async def drain(self, max_bytes: int) -> None:
        """Reads what is left of a body that was refused, up to `max_bytes`.

        A client that sends its whole body before it reads would see a closed connection and no error.
        """
        with suppress(InvalidRequest):  # it comes too slowly
            while max_bytes > 0 and (chunk := await self._body.next()) is not None:
                max_bytes -= len(chunk.data)

    def _read(self, event: FormEvent) -> bytes | None:
        """Returns a piece of the file, or notes what else the form has."""
        match event:
            case bytes():
                return event
            case FormFile(name=name, filename=filename) if name == self._form.file and self._filename is None:
                self._filename = filename
            case FormFile(name=name):
                message = f"expected one file, in the member '{self._form.file}'"
                raise InvalidRequest(name[:64], message, "unsupported")
            case FormText(name=name) if name == self._form.file:
                raise InvalidRequest(name, "expected a file, got a text: the part has no file name", "invalid_type")
            case FormText(name=name, text=text):
                if name in self._members:
                    raise InvalidRequest(name[:64], "expected once in the form", "conflicting_values")
                self._members[name] = text
        return None

    def _header(self) -> Message:
        """Returns the message that the texts of the form are."""
        members = {self._form.filename: self._filename or "", **self._members}
        values = _typed(self._codec.dialect, self._header_type, members)
        try:
            decoded = self._codec.decode(msgspec.json.encode(values), GetMessageClass(self._header_type))
        except DecodeError as error:
            name = _QUOTED.sub(r"\1", error.path or "")
            raise DecodeError(name, error.message.replace(error.path or "", name), error.code) from error
        self.ignored += decoded.ignored
        self.aliased |= decoded.aliased
        return decoded.message


def _typed(dialect: Dialect, header: Descriptor, members: Mapping[str, str]) -> dict[str, Any]:
    """Returns the members of a form, which are texts, as the JSON types of their fields."""
    kinds = {name: field.kinds for field in dialect.message(header).fields for name in field.names}
    return {name: _value(text, kinds.get(name, frozenset())) for name, text in members.items()}


def _value(text: str, kinds: frozenset[JsonKind]) -> Any:
    if JsonKind.STRING not in kinds:
        if JsonKind.NUMBER in kinds and _INTEGER.fullmatch(text):
            return int(text)
        if JsonKind.BOOLEAN in kinds:
            return _BOOLEANS.get(text, text)
    return text
