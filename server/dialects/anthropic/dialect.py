"""Anthropic's dialect over REST: its service, its rules and its errors."""

from typing import Any

import grpc

from glimpse.anthropic.v1 import anthropic_pb2
from glimpse.dialect.anthropic import ANTHROPIC as RULES
from glimpse.server.codec.codec import Codec
from glimpse.server.dialects.facade import RestDialect
from glimpse.server.rpc.failure import RpcFailure

_ERROR_TYPES = {
    grpc.StatusCode.INVALID_ARGUMENT: "invalid_request_error",
    grpc.StatusCode.FAILED_PRECONDITION: "invalid_request_error",
    grpc.StatusCode.NOT_FOUND: "not_found_error",
    grpc.StatusCode.UNAUTHENTICATED: "authentication_error",
    grpc.StatusCode.PERMISSION_DENIED: "permission_error",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "rate_limit_error",
    grpc.StatusCode.DEADLINE_EXCEEDED: "timeout_error",
    grpc.StatusCode.UNAVAILABLE: "overloaded_error",
}
_TYPES_BY_REASON = {
    "request_too_large": "request_too_large",
    # Reasons whose status alone would blame the client.
    "out_of_memory": "api_error",
    "suspected_prompt": "api_error",
}


def _error(failure: RpcFailure) -> dict[str, Any]:
    kind = _TYPES_BY_REASON.get(failure.reason) or _ERROR_TYPES.get(failure.code, "api_error")
    error: dict[str, Any] = {"type": kind, "message": failure.message, "param": failure.field, "code": failure.reason}
    if failure.field == "thread":  # Anthropic's tool runner then sends the whole conversation instead
        error["details"] = {"error_code": "thread_unsupported_request"}
    return {"type": "error", "error": error}


ANTHROPIC = RestDialect(
    service=anthropic_pb2.DESCRIPTOR.services_by_name["AnthropicService"],
    codec=Codec(RULES),
    error=_error,
    error_event=lambda failure, _number: _error(failure),
    features_header="anthropic-beta",
)
