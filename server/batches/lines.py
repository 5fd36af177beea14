"""The lines of a batch: requests of the REST API, one in each line, as OpenAI's batches have them, and answers."""

import re
from codecs import BOM_UTF8
from collections.abc import Container, Mapping
from typing import Annotated

import grpc
import msgspec
from google.protobuf.descriptor import MethodDescriptor

from glimpse.dialect.bindings import bindings
from glimpse.dialect.options import http_option
from glimpse.server.dialects.anthropic.dialect import ANTHROPIC
from glimpse.server.dialects.openai import OPENAI
from glimpse.server.errors import InvalidRequest
from glimpse.v1 import (
    batch_pb2,
    chat_pb2,
    completion_pb2,
    embedding_pb2,
    media_pb2,
    model_pb2,
    rerank_pb2,
    tokenizer_pb2,
)

OK = 200
TYPED = (batch_pb2, chat_pb2, completion_pb2, embedding_pb2, media_pb2, model_pb2, rerank_pb2, tokenizer_pb2)
"""Imported, because facades name their methods, and `glimpse batch` imports nothing else that has them."""
_SERVICE = "glimpse.v1.BatchService"
_TEMPORARY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
"""The server has no room, or its engine is starting again: the request waits."""
_DIED = grpc.StatusCode.ABORTED
"""The engine died while it had the request, which may have been the cause."""
_MAX_ATTEMPTS = 3
"""Attempts of a request with which the engine dies."""
_HTTP_STATUSES = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
"""HTTP statuses as the gateway has them; others are 500."""
_MEMBER = re.compile(r"`\$\.(\w+)|field `(\w+)`")
"""A member in a message of msgspec."""


class BatchLine(msgspec.Struct, frozen=True):
    """A request of a batch."""

    custom_id: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
    """Name of the request, which the result repeats."""
    url: str
    """The path, such as "/v1/chat/completions"."""
    body: msgspec.Raw
    """The JSON document."""
    method: str = "POST"


class _Body(msgspec.Struct):
    """What a batch has to know of a body."""

    stream: bool | None = None


class LineResponse(msgspec.Struct):
    """What a request was answered with."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class LineError(msgspec.Struct):
    """Why a request was never asked."""

    code: str
    message: str


class LineResult(msgspec.Struct):
    """A line of results."""

    id: str
    custom_id: str
    response: LineResponse | None
    error: LineError | None


def methods() -> Mapping[str, MethodDescriptor]:
    """Returns the methods of facades that a batch may use, by their paths."""
    found = (each for dialect in (OPENAI, ANTHROPIC) for each in bindings(dialect.service))
    return {
        http_option(each.facade).post: each.facade
        for each in found
        if each.facade.client_streaming and each.form is None and each.unary.containing_service.full_name != _SERVICE
    }


def parse_line(line: bytes, urls: Container[str]) -> BatchLine:
    """Parses a line. `urls` are the paths that it may have. Raises InvalidRequest, with OpenAI's code as its reason."""
    try:
        parsed = msgspec.json.decode(line.removeprefix(BOM_UTF8), type=BatchLine)  # of a file that an editor wrote
        body = msgspec.json.decode(parsed.body, type=_Body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason, member = "invalid_json_line", ""
        if isinstance(error, msgspec.ValidationError):
            found = _MEMBER.search(str(error))
            member = "" if found is None else found[1] or found[2]
            reason = "missing_required_parameter" if "missing" in str(error) else "invalid_value"
        message = f"expected a request of a batch, got another document: {error}"
        raise InvalidRequest(member, message, reason) from error
    if parsed.method != "POST":
        raise InvalidRequest("method", f"expected 'POST', got '{parsed.method[:64]}'", "invalid_method")
    if parsed.url not in urls:
        message = f"expected the path of a POST request of this batch, got '{parsed.url[:64]}'"
        raise InvalidRequest("url", message, "invalid_url")
    if body.stream:
        raise InvalidRequest("body.stream", "expected false: the result of a batch is a document")
    return parsed


def may_succeed(code: grpc.StatusCode, reason: str, attempt: int) -> bool:
    """Returns whether a request that ended with this status is asked again, after so many attempts."""
    if code in _TEMPORARY and reason != "out_of_memory":
        return True
    return code in (*_TEMPORARY, _DIED) and attempt < _MAX_ATTEMPTS


def http_status(code: grpc.StatusCode) -> int:
    """Returns the HTTP status that the gateway makes of a gRPC status."""
    return _HTTP_STATUSES.get(code, 500)


def answered(custom_id: str, request_id: str, status: int, body: bytes) -> LineResult:
    """Returns the result of a request that was asked."""
    response = LineResponse(status_code=status, request_id=request_id, body=msgspec.Raw(body))
    return LineResult(id=f"batch_req_{request_id}", custom_id=custom_id, response=response, error=None)
