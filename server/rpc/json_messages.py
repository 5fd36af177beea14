"""Messages of the typed methods in protobuf's JSON, for clients that speak Connect or plain HTTP.

Connect's requests reach the server as gRPC whose messages are JSON (`application/grpc+json`). The gRPC library hides
content types, so the gateway names the codec in a header, and sets the content type of the response.

Plain HTTP, on the paths of `google.api.http`, reaches it as gRPC whose messages are `google.api.HttpBody`. A stream is
written as grpc-gateway writes it: a line for each message, `{"result": …}`, or `{"error": …}` with a
`google.rpc.Status` if it fails.
"""

from collections.abc import AsyncGenerator, AsyncIterable
from typing import TypeVar

from google.api.httpbody_pb2 import HttpBody
from google.protobuf import json_format
from google.protobuf.message import Message

from glimpse.server.call.context import CallContext
from glimpse.server.call.offload import run_sized
from glimpse.server.errors import InvalidRequest
from glimpse.server.rpc.errors import rich_status
from glimpse.server.rpc.failure import RpcFailure
from glimpse.server.rpc.http_bodies import JSON_LINES, collect, read_lines
from glimpse.server.rpc.request_size import check_json_size
from glimpse.server.rpc.text_chunks import TextChunk

MAX_BODY_BYTES = 8 << 20
"""The largest body of an HTTP request, or line of one. The library for JSON holds several copies of a document, and
lets nothing else run while it parses a string."""

_MessageT = TypeVar("_MessageT", bound=Message)


async def parse_json(message_class: type[_MessageT], document: bytes, client: str) -> _MessageT:
    """Parses a message, in a thread if it is large. Raises InvalidRequest."""
    check_json_size(document)
    return await run_sized(client, len(document), _parse, message_class, document)


async def to_json(message: Message, client: str) -> bytes:
    """Returns a message as JSON; in a thread if it is large."""
    return await run_sized(client, message.ByteSize(), _write, message)


async def parse_body(message_class: type[_MessageT], messages: AsyncIterable[bytes], call: CallContext) -> _MessageT:
    """Collects and parses the body of an HTTP request. Raises InvalidRequest."""
    pieces = await collect(_bodies(messages), call.body, max_bytes=MAX_BODY_BYTES)
    await call.ticket.begin()
    return await call.parse(_parse_pieces, message_class, pieces)


async def parse_lines(
    message_class: type[_MessageT], messages: AsyncIterable[bytes], client: str
) -> AsyncGenerator[_MessageT]:
    """Parses each line of the body of an HTTP request. Raises InvalidRequest."""
    async for line in read_lines(_bodies(messages), max_bytes=MAX_BODY_BYTES):
        yield await parse_json(message_class, line, client)


async def to_body(response: Message, client: str) -> HttpBody:
    """Returns a message as the body of an HTTP response."""
    return HttpBody(content_type="application/json", data=await to_json(response, client))


async def to_line(response: Message, client: str) -> HttpBody:
    """Returns a message as a line of an HTTP response."""
    return _line(b"result", await to_json(response, client))


def failure_line(failure: RpcFailure) -> HttpBody:
    """Returns why a stream ends, as the last line of an HTTP response. HTTP/1.1 loses a status that follows a body."""
    return _line(b"error", _write(rich_status(failure)))


def serialize(response: Message | TextChunk | bytes) -> bytes:
    """Returns the bytes of a response; those of JSON pass."""
    if isinstance(response, bytes):
        return response
    return response.serialize() if isinstance(response, TextChunk) else response.SerializeToString()


def _parse(message_class: type[_MessageT], document: bytes) -> _MessageT:
    try:
        return json_format.Parse(document, message_class())
    # The last two: of bytes that are no UTF-8, and of arrays in arrays without end.
    except (json_format.ParseError, UnicodeDecodeError, RecursionError) as error:
        name, reason = message_class.DESCRIPTOR.full_name, str(error).partition("\n")[0]
        raise InvalidRequest(
            "", f"expected a {name} message in protobuf's JSON, got another document: {reason}"
        ) from error


def _parse_pieces(message_class: type[_MessageT], pieces: list[bytes]) -> _MessageT:
    document = b"".join(pieces)
    pieces.clear()  # frees them: the caller keeps the list
    check_json_size(document)
    return _parse(message_class, document)


async def _bodies(messages: AsyncIterable[bytes]) -> AsyncGenerator[HttpBody]:
    async for message in messages:
        yield HttpBody.FromString(message)


def _line(name: bytes, document: bytes) -> HttpBody:
    return HttpBody(content_type=JSON_LINES, data=b'{"%b":%b}\n' % (name, document))


def _write(message: Message) -> bytes:
    return json_format.MessageToJson(message, indent=None, ensure_ascii=False).encode()
