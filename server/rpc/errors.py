"""From exceptions to what a client is told: one table, for every door. Knows no service and no JSON.

A failure travels as a gRPC status whose details name the reason and the field; the gateway derives HTTP's from it.
"""

from dataclasses import dataclass
from typing import NoReturn, Self

import grpc
import grpc.aio
import structlog
from google.protobuf import any_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from glimpse.engine.errors import EngineError, EngineErrorCode
from glimpse.engine.text.prompt import TemplateError
from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.server.rpc.context import REQUEST_ID_HEADER, current_call

ERROR_DOMAIN = "glimpse"
DETAILS_HEADER = "grpc-status-details-bin"
HTTP_STATUS_HEADER = "x-http-status"
"""Trailing metadata by which a failure says its HTTP status where gRPC has no code for it."""

MAX_MESSAGE_BYTES = 1024
"""Statuses travel as HTTP headers, of which 8 KiB are safe, and the message stands there three times, encoded."""

_log = structlog.get_logger(__name__)


class InvalidRequest(Exception):  # noqa: N818 - what is wrong is the request, not an error of ours
    """A request that cannot be served as it is."""

    def __init__(self, field: str, message: str, reason: str = "invalid_value") -> None:
        super().__init__(message)
        self.field = field
        """The proto path of the field at fault, such as "messages[0].content[1].image.source"."""
        self.message = message
        self.reason = reason

    @classmethod
    def unsupported(cls, field: str, what: str) -> Self:
        """The request asks for something that the API defines and this server cannot do yet."""
        return cls(field, f"Not supported by this server yet: {what}.", "unsupported")


class ModelNotFoundError(Exception):
    """A model that is not served here."""

    def __init__(self, model: str, served: tuple[str, ...]) -> None:
        names = ", ".join(f"'{name}'" for name in served)
        super().__init__(f"The model '{model[:256]}' does not exist. Served here: {names}.")


class DeadlineExceededError(Exception):
    """The time that the client allows has passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcFailure:
    """A failure as clients see it."""

    code: grpc.StatusCode
    message: str
    reason: str
    """OpenAI's `code`, in lower case."""
    type: str
    """OpenAI's `type`."""
    field: str | None = None
    """The path of the field at fault."""
    http_status: int | None = None
    """Where the HTTP status is not the one that follows from `code`."""


def to_status(error: Exception) -> RpcFailure:
    """Looks an exception up in the table. One that is not in it is ours to explain: it is logged with its traceback."""
    match error:
        case InvalidRequest():
            return _invalid(error.message, error.reason, error.field)
        case MediaError():
            return _invalid(error.message, error.code.value, None)
        case TemplateError():
            return _invalid(str(error), "template_refused", "messages")
        case ModelNotFoundError():
            return RpcFailure(
                code=grpc.StatusCode.NOT_FOUND,
                message=str(error),
                reason="model_not_found",
                type="invalid_request_error",
                field="model",
            )
        case DeadlineExceededError():
            return RpcFailure(
                code=grpc.StatusCode.DEADLINE_EXCEEDED,
                message="The deadline passed before the answer was complete.",
                reason="deadline_exceeded",
                type="timeout_error",
            )
        case EngineError(code=EngineErrorCode.INTERNAL):
            _log.error("engine_error", message=error.message)
            return _internal()
        case EngineError():
            return _engine_failure(error)
        case _:
            _log.error("unexpected_error", exc_info=error)
            return _internal()


async def abort(context: grpc.aio.ServicerContext[object, object], failure: RpcFailure) -> NoReturn:
    """Ends a call with this failure, in the form of `google.rpc.Status`."""
    message = _shortened(failure.message)
    trailers: list[tuple[str, str | bytes]] = [
        *(context.trailing_metadata() or ()),
        (DETAILS_HEADER, _rich_status(failure, message).SerializeToString()),
        (REQUEST_ID_HEADER, current_call().request_id),
    ]
    if failure.http_status is not None:
        trailers.append((HTTP_STATUS_HEADER, str(failure.http_status)))
    await context.abort(failure.code, message, tuple(trailers))


_HTTP_STATUS_BY_REASON = {MediaErrorCode.TOO_LARGE.value: 413, "request_too_large": 413}
_CODE_BY_REASON = {
    # Nothing is wrong with the request, once what it names is here.
    MediaErrorCode.NOT_CACHED.value: grpc.StatusCode.FAILED_PRECONDITION,
    MediaErrorCode.OVERLOADED.value: grpc.StatusCode.RESOURCE_EXHAUSTED,
    "upload_not_found": grpc.StatusCode.NOT_FOUND,
}


def _invalid(message: str, reason: str, field: str | None) -> RpcFailure:
    code = _CODE_BY_REASON.get(reason, grpc.StatusCode.INVALID_ARGUMENT)
    return RpcFailure(
        code=code,
        message=message,
        reason=reason,
        type="rate_limit_error" if code is grpc.StatusCode.RESOURCE_EXHAUSTED else "invalid_request_error",
        field=field,
        http_status=_HTTP_STATUS_BY_REASON.get(reason),
    )


_ENGINE_FAILURES = {
    EngineErrorCode.PROMPT_TOO_LONG: (
        grpc.StatusCode.INVALID_ARGUMENT,
        "context_length_exceeded",
        "invalid_request_error",
        "messages",
    ),
    EngineErrorCode.UNSUPPORTED: (grpc.StatusCode.INVALID_ARGUMENT, "unsupported", "invalid_request_error", "messages"),
    # Not UNAVAILABLE: proxies take that for a dead replica and eject it.
    EngineErrorCode.OVERLOADED: (grpc.StatusCode.RESOURCE_EXHAUSTED, "overloaded", "rate_limit_error", None),
    EngineErrorCode.OUT_OF_MEMORY: (grpc.StatusCode.RESOURCE_EXHAUSTED, "out_of_memory", "server_error", None),
    EngineErrorCode.UNAVAILABLE: (grpc.StatusCode.UNAVAILABLE, "engine_unavailable", "server_error", None),
}


def _engine_failure(error: EngineError) -> RpcFailure:
    code, reason, kind, field = _ENGINE_FAILURES[error.code]
    return RpcFailure(code=code, message=error.message, reason=reason, type=kind, field=field)


def _internal() -> RpcFailure:
    return RpcFailure(
        code=grpc.StatusCode.INTERNAL,
        message=f"Internal error. The server's log has the details under request {current_call().request_id}.",
        reason="internal_error",
        type="server_error",
    )


def _rich_status(failure: RpcFailure, message: str) -> status_pb2.Status:
    info = error_details_pb2.ErrorInfo(reason=failure.reason.upper(), domain=ERROR_DOMAIN)
    info.metadata["type"] = failure.type
    details: list[Message] = [info]
    if failure.field is not None:
        info.metadata["param"] = failure.field
        violation = error_details_pb2.BadRequest.FieldViolation(field=failure.field, description=message)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    return status_pb2.Status(code=failure.code.value[0], message=message, details=map(_packed, details))


def _packed(detail: Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(detail)
    return packed


def _shortened(message: str) -> str:
    encoded = message.encode(errors="replace")
    if len(encoded) <= MAX_MESSAGE_BYTES:
        return message
    return encoded[: MAX_MESSAGE_BYTES - 3].decode(errors="ignore") + "…"
