"""Reads REST requests: collects the body from its chunks, checks it and decodes it."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from google.api.httpbody_pb2 import HttpBody
from google.protobuf.message import Message

from glimpse.dialect.rules import JsonKind
from glimpse.server.openai.codec import Decoded, decode
from glimpse.server.openai.scalars import wrong_type
from glimpse.server.rpc.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedRequest:
    """A decoded REST request."""

    message: Message
    """The typed request."""
    unknown: list[str]
    """JSON paths of the members that are unknown."""
    streaming: bool
    """Whether the client asks for a stream."""
    aliased: dict[str, str] = field(default_factory=dict[str, str])
    """JSON path by a field's own name → the path that the client used."""


async def collect(chunks: AsyncIterator[HttpBody], *, max_bytes: int) -> bytes:
    """Returns the whole body.

    Raises:
        InvalidRequest: it is larger than `max_bytes`, or its content type is not JSON.
    """
    kept: list[bytes] = []
    num_bytes = 0
    async for chunk in chunks:
        _check_content_type(chunk.content_type)
        num_bytes += len(chunk.data)
        if num_bytes <= max_bytes:
            kept.append(chunk.data)
        elif num_bytes > 2 * max_bytes:
            break
    # Refused only now: a client that sends its whole body before it reads would see a closed connection and no error.
    if num_bytes > max_bytes:
        raise InvalidRequest("", f"The body is larger than {max_bytes} bytes.", "request_too_large")
    return b"".join(kept)


def decode_request(body: bytes, request_class: type[Message], *, stream_member: str | None) -> DecodedRequest:
    """Decodes a body. `stream_member` names the member that asks for a stream. Raises DecodeError."""
    decoded = decode(body, request_class, extra_members=() if stream_member is None else (stream_member,))
    return DecodedRequest(
        message=decoded.message,
        unknown=decoded.unknown,
        streaming=stream_member is not None and _asks_for_stream(decoded, stream_member),
        aliased=decoded.aliased,
    )


def _asks_for_stream(decoded: Decoded[Message], member: str) -> bool:
    value = decoded.extra.get(member, False)
    if not isinstance(value, bool):
        raise wrong_type((JsonKind.BOOLEAN,), value, (None, member))
    return value


def _check_content_type(content_type: str) -> None:
    """Accepts an empty type: only the first chunk has one, and clients may omit it."""
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type and media_type != "application/json" and not media_type.endswith("+json"):
        raise InvalidRequest("", f"The body must be application/json, not {media_type[:64]}.", "unsupported_media_type")
