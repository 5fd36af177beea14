"""Messages of the typed methods in protobuf's JSON, for clients that speak Connect.

Their requests reach the server as gRPC whose messages are JSON (`application/grpc+json`). The gRPC library hides
content types, so the gateway names the codec in a header, and sets the content type of the response.
"""

from typing import TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message

from glimpse.server.rpc.errors import InvalidRequest
from glimpse.server.rpc.offload import run_sized
from glimpse.server.rpc.request_size import check_json_size

_MessageT = TypeVar("_MessageT", bound=Message)


async def parse_json(message_class: type[_MessageT], document: bytes) -> _MessageT:
    """Parses a message, in a thread if it is large. Raises InvalidRequest."""
    check_json_size(document)
    return await run_sized(len(document), _parse, message_class, document)


async def to_json(message: Message) -> bytes:
    """Returns a message as JSON; in a thread if it is large."""
    return await run_sized(message.ByteSize(), _write, message)


def serialize(response: Message | bytes) -> bytes:
    """Returns the bytes of a response; those of JSON pass."""
    return response if isinstance(response, bytes) else response.SerializeToString()


def _parse(message_class: type[_MessageT], document: bytes) -> _MessageT:
    try:
        return json_format.Parse(document, message_class())
    # The last two: of bytes that are no UTF-8, and of arrays in arrays without end.
    except (json_format.ParseError, UnicodeDecodeError, RecursionError) as error:
        name, reason = message_class.DESCRIPTOR.full_name, str(error).partition("\n")[0]
        raise InvalidRequest(
            "", f"expected a {name} message in protobuf's JSON, got another document: {reason}"
        ) from error


def _write(message: Message) -> bytes:
    return json_format.MessageToJson(message, indent=None, ensure_ascii=False).encode()
