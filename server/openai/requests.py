"""What comes in at the OpenAI door → typed requests: the body is collected from its parts, checked and decoded."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from google.api.httpbody_pb2 import HttpBody
from google.protobuf.message import Message

from glimpse.dialect.rules import JsonKind
from glimpse.server.openai.codec import Decoded, decode
from glimpse.server.openai.scalars import wrong_type
from glimpse.server.rpc.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A request, decoded."""

    message: Message
    """The typed request."""
    unknown: list[str]
    """JSON paths of the members that were not understood."""
    streaming: bool
    """The answer is to come piece by piece."""
    aliased: dict[str, str] = field(default_factory=dict[str, str])
    """JSON paths of fields by their own names → those by which they were given."""


async def collect(parts: AsyncIterator[HttpBody], *, max_bytes: int) -> bytes:
    """The whole body. Raises InvalidRequest for one that is too large or says that it is not JSON."""
    chunks: list[bytes] = []
    num_bytes = 0
    async for part in parts:
        _check_content_type(part.content_type)
        num_bytes += len(part.data)
        if num_bytes <= max_bytes:
            chunks.append(part.data)
        elif num_bytes > 2 * max_bytes:
            break
    # Not sooner: a client that sends everything before it reads would find the connection closed and never learn why.
    if num_bytes > max_bytes:
        raise InvalidRequest("", f"The body is larger than {max_bytes} bytes.", "request_too_large")
    return b"".join(chunks)


def read_question(body: bytes, request_class: type[Message], *, stream_member: str | None) -> Question:
    """Raises DecodeError. `stream_member` names the member that asks for an answer piece by piece."""
    decoded = decode(body, request_class, extra_members=() if stream_member is None else (stream_member,))
    return Question(
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
    """Only the first part says one, and a client need not."""
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type and media_type != "application/json" and not media_type.endswith("+json"):
        raise InvalidRequest("", f"The body must be application/json, not {media_type[:64]}.", "unsupported_media_type")
