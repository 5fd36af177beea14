"""OpenAI's dialect over REST: its service, its rules and its errors."""

from typing import Any

import grpc

from glimpse.dialect.openai import OPENAI as RULES
from glimpse.openai.v1 import openai_pb2
from glimpse.server.codec.codec import Codec
from glimpse.server.dialects.facade import RestDialect
from glimpse.server.rpc.failure import RpcFailure

_ERROR_TYPES = {
    grpc.StatusCode.INVALID_ARGUMENT: "invalid_request_error",
    grpc.StatusCode.NOT_FOUND: "invalid_request_error",
    grpc.StatusCode.FAILED_PRECONDITION: "invalid_request_error",
    grpc.StatusCode.UNAUTHENTICATED: "authentication_error",
    grpc.StatusCode.PERMISSION_DENIED: "permission_error",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "rate_limit_error",
    grpc.StatusCode.DEADLINE_EXCEEDED: "timeout_error",
}
_FAULTS_OF_THE_SERVER = ("out_of_memory", "suspected_prompt")
"""Reasons whose status alone would blame the client."""


def _error(failure: RpcFailure) -> dict[str, Any]:
    kind = "server_error" if failure.reason in _FAULTS_OF_THE_SERVER else _ERROR_TYPES.get(failure.code, "server_error")
    return {"error": {"message": failure.message, "type": kind, "param": failure.field, "code": failure.reason}}


def _error_event(failure: RpcFailure, number: int) -> dict[str, Any]:
    # OpenAI's types have the members in the event itself, and its clients also read them from `error`.
    members = {"code": failure.reason, "message": failure.message, "param": failure.field}
    return {"type": "error", "sequence_number": number, **members, **_error(failure)}


OPENAI = RestDialect(
    service=openai_pb2.DESCRIPTOR.services_by_name["OpenAIService"],
    codec=Codec(RULES),
    error=_error,
    error_event=_error_event,
)
