"""Maps exceptions to gRPC statuses, for typed and REST clients alike.

Status details carry the reason and the field, and for REST clients the document of their dialect, which the gateway
sends as it is.
"""

import asyncio
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NoReturn

import grpc
import grpc.aio
import structlog
from google.protobuf import any_pb2, struct_pb2
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

from glimpse.engine.errors import EngineError, EngineErrorCode, TemplateError
from glimpse.identity.errors import (
    AccessError,
    PermissionDeniedError,
    QuotaExceededError,
    UnauthenticatedError,
)
from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.server.errors import DeadlineExceededError, InvalidRequest, ModelNotFoundError, ServerStoppingError
from glimpse.server.rpc.context import REQUEST_ID_HEADER, Rpc
from glimpse.server.rpc.failure import ErrorDocument, FailedRpcError, RpcFailure
from glimpse.server.rpc.stopping import MAX_UNREAD_SECONDS, UnreadResponseError

ERROR_DOMAIN = "glimpse"
DETAILS_HEADER = "grpc-status-details-bin"
HTTP_STATUS_HEADER = "x-http-status"
"""Trailing metadata with the HTTP status, for failures that no gRPC code maps to."""
RETRY_AFTER_HEADER = "retry-after"
"""Trailing metadata with the whole seconds after which the request may be repeated; REST clients get it as a header."""
PUSHBACK_HEADER = "grpc-retry-pushback-ms"
"""Trailing metadata with the same delay, as gRPC's own retries read it (gRFC A6)."""

MAX_MESSAGE_BYTES = 1024
"""Statuses are sent as HTTP headers, where 8 KiB are safe, and contain the message three times, encoded."""

_log = structlog.get_logger(__name__)


def to_status(error: Exception, request_id: str) -> RpcFailure:
    """Maps an exception of this request to a failure. Logs unexpected exceptions with their traceback."""
    for kind, failure in _ENDINGS.items():
        if isinstance(error, kind):
            return failure
    match error:
        case FailedRpcError():
            return error.failure
        case InvalidRequest():
            return _invalid(error.message, error.reason, error.field)
        case MediaError():
            return _invalid(error.message, error.code.value, None)
        case DecodeError():  # of a stream of requests, which gRPC parses
            return _invalid("expected messages of this method's type, got other bytes", "invalid_value", None)
        case TemplateError():
            return _invalid(str(error), "template_refused", "messages")
        case ModelNotFoundError():
            return RpcFailure(
                code=grpc.StatusCode.NOT_FOUND,
                message=str(error),
                reason="model_not_found",
                field="model",
            )
        case AccessError():
            return _access_failure(error)
        case EngineError():
            return _engine_failure(error, request_id)
        case _:
            _log.error("unexpected_error", exc_info=error)
            return _internal(request_id)


async def abort(rpc: Rpc, failure: RpcFailure) -> NoReturn:
    """Ends the RPC with a failure, with details as `google.rpc.Status`; in a dialect, its document is among them."""
    failure = replace(failure, message=_truncate(failure.message))
    rpc.reason = rpc.reason or failure.reason  # a failure that is being sent is not replaced
    status = rich_status(failure, names_domains=rpc.codec not in ("proto", "json"), document=rpc.error_document)
    trailers: list[tuple[str, str | bytes]] = [
        *(rpc.context.trailing_metadata() or ()),
        (DETAILS_HEADER, status.SerializeToString()),
        (REQUEST_ID_HEADER, rpc.call.request_id),
        *rpc.usage_trailers,
    ]
    if failure.http_status is not None:
        trailers.append((HTTP_STATUS_HEADER, str(failure.http_status)))
    if failure.retry_after_seconds is not None:
        trailers.append((RETRY_AFTER_HEADER, str(max(1, math.ceil(failure.retry_after_seconds)))))
        trailers.append((PUSHBACK_HEADER, str(math.ceil(1000 * failure.retry_after_seconds))))
    sending = asyncio.ensure_future(rpc.context.abort(failure.code, failure.message, tuple(trailers)))
    try:
        await asyncio.shield(sending)
    except asyncio.CancelledError:
        await sending  # the server stops, or the client has left: what is being said last is said to its end
        raise
    raise AssertionError("abort returned")


_HTTP_STATUS_BY_CODE = {grpc.StatusCode.ABORTED: 503}
_HTTP_STATUS_BY_REASON = {MediaErrorCode.TOO_LARGE.value: 413, "request_too_large": 413, "request_timeout": 408}
_CODE_BY_REASON = {
    # The same request succeeds once the client has sent the media it refers to.
    MediaErrorCode.NOT_CACHED.value: grpc.StatusCode.FAILED_PRECONDITION,
    MediaErrorCode.OVERLOADED.value: grpc.StatusCode.RESOURCE_EXHAUSTED,
    MediaErrorCode.WORKER_KILLED.value: grpc.StatusCode.UNAVAILABLE,
    MediaErrorCode.STORE_UNAVAILABLE.value: grpc.StatusCode.UNAVAILABLE,
    "upload_not_found": grpc.StatusCode.NOT_FOUND,
    "response_not_found": grpc.StatusCode.NOT_FOUND,
    "batch_not_found": grpc.StatusCode.NOT_FOUND,
    "batch_ended": grpc.StatusCode.FAILED_PRECONDITION,
    "batch_store_full": grpc.StatusCode.RESOURCE_EXHAUSTED,
}
_TEMPORARY = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
"""The server is at fault: a later attempt may succeed."""
_OVERLOAD_SECONDS = 1.0
"""Delay before a retry where a request was refused for lack of room: requests end all the time."""
_ENDINGS: Mapping[type[Exception], RpcFailure] = {
    DeadlineExceededError: RpcFailure(
        code=grpc.StatusCode.DEADLINE_EXCEEDED,
        message="The deadline passed before the response was complete.",
        reason="deadline_exceeded",
    ),
    ServerStoppingError: RpcFailure(
        code=grpc.StatusCode.UNAVAILABLE,
        message="The server is stopping.",
        reason="engine_unavailable",
        retry_after_seconds=1.0,  # by another replica, or by this one after its restart
    ),
    UnreadResponseError: RpcFailure(
        code=grpc.StatusCode.DEADLINE_EXCEEDED,
        message=f"The response: expected a client that reads it, got none for {MAX_UNREAD_SECONDS:g} seconds.",
        reason="response_not_read",
    ),
    # Of a write to a connection that is gone. That the RPC is cancelled comes next, and nobody reads this.
    grpc.aio.InternalError: RpcFailure(
        code=grpc.StatusCode.CANCELLED, message="The client has left.", reason="cancelled"
    ),
}


def _invalid(message: str, reason: str, field: str | None) -> RpcFailure:
    code = _CODE_BY_REASON.get(reason, grpc.StatusCode.INVALID_ARGUMENT)
    return RpcFailure(
        code=code,
        message=message,
        reason=reason,
        retry_after_seconds=_OVERLOAD_SECONDS if code in _TEMPORARY else None,
        field=None if code is grpc.StatusCode.UNAVAILABLE else field,
        http_status=_HTTP_STATUS_BY_REASON.get(reason),
    )


_ENGINE_FAILURES = {
    EngineErrorCode.PROMPT_TOO_LONG: (
        grpc.StatusCode.INVALID_ARGUMENT,
        "context_length_exceeded",
        "messages",
    ),
    EngineErrorCode.UNSUPPORTED: (grpc.StatusCode.INVALID_ARGUMENT, "unsupported", "messages"),
    EngineErrorCode.NO_ADAPTER: (grpc.StatusCode.NOT_FOUND, "model_not_found", "model"),
    # Not UNAVAILABLE: proxies treat that as a failed replica and eject it.
    EngineErrorCode.OVERLOADED: (grpc.StatusCode.RESOURCE_EXHAUSTED, "overloaded", None),
    EngineErrorCode.OUT_OF_MEMORY: (grpc.StatusCode.RESOURCE_EXHAUSTED, "out_of_memory", None),
    EngineErrorCode.LOADING: (grpc.StatusCode.UNAVAILABLE, "model_loading", None),
    EngineErrorCode.UNAVAILABLE: (grpc.StatusCode.UNAVAILABLE, "engine_unavailable", None),
    # Not UNAVAILABLE: proxies and clients repeat that by themselves, and the engine may have died of the request.
    EngineErrorCode.DIED: (grpc.StatusCode.ABORTED, "engine_died", None),
    EngineErrorCode.SUSPECTED: (grpc.StatusCode.FAILED_PRECONDITION, "suspected_prompt", None),
}


def _engine_failure(error: EngineError, request_id: str) -> RpcFailure:
    if error.code is EngineErrorCode.INTERNAL:
        _log.error("engine_error", message=error.message)
        return _internal(request_id)
    code, reason, field = _ENGINE_FAILURES[error.code]
    retry_after_seconds = error.retry_after_seconds
    if retry_after_seconds is None and code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        retry_after_seconds = _OVERLOAD_SECONDS
    return RpcFailure(
        code=code,
        message=error.message,
        reason=reason,
        field=field,
        http_status=_HTTP_STATUS_BY_CODE.get(code),
        retry_after_seconds=retry_after_seconds,
    )


_ACCESS_CODES: Mapping[type[AccessError], grpc.StatusCode] = {
    UnauthenticatedError: grpc.StatusCode.UNAUTHENTICATED,
    PermissionDeniedError: grpc.StatusCode.PERMISSION_DENIED,
    QuotaExceededError: grpc.StatusCode.RESOURCE_EXHAUSTED,
}


def _access_failure(error: AccessError) -> RpcFailure:
    return RpcFailure(
        code=_ACCESS_CODES[type(error)],
        message=error.message,
        reason=error.reason,
        retry_after_seconds=error.retry_after_seconds if isinstance(error, QuotaExceededError) else None,
    )


def _internal(request_id: str) -> RpcFailure:
    return RpcFailure(
        code=grpc.StatusCode.INTERNAL,
        message=f"Internal error. The server log has details under request id {request_id}.",
        reason="internal_error",
    )


def rich_status(
    failure: RpcFailure, *, names_domains: bool = True, document: ErrorDocument | None = None
) -> status_pb2.Status:
    """Returns the failure with its details.

    Args:
        failure: what went wrong.
        names_domains: whether the names of the details' types have a domain. In Connect's own protocol they have none.
        document: makes the error document of the client's dialect, which is the last detail then. The gateway sends it
            as the body of the response.
    """
    info = error_details_pb2.ErrorInfo(reason=failure.reason.upper(), domain=ERROR_DOMAIN)
    details: list[Message] = [info]
    if failure.field is not None:
        info.metadata["param"] = failure.field
    if failure.field is not None and document is None:
        violation = error_details_pb2.BadRequest.FieldViolation(field=failure.field, description=failure.message)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if failure.retry_after_seconds is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMicroseconds(math.ceil(1e6 * failure.retry_after_seconds))
        details.append(retry)
    if document is not None:
        body = struct_pb2.Struct()
        body.update(document(failure))
        details.append(body)
    packed = [_pack(detail, names_domains) for detail in details]
    return status_pb2.Status(code=failure.code.value[0], message=failure.message, details=packed)


def _pack(detail: Message, names_domain: bool) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(detail)
    if not names_domain:
        packed.type_url = detail.DESCRIPTOR.full_name
    return packed


def _truncate(message: str) -> str:
    encoded = message.encode(errors="replace")
    if len(encoded) <= MAX_MESSAGE_BYTES:
        return message
    return encoded[: MAX_MESSAGE_BYTES - 3].decode(errors="ignore") + "…"
