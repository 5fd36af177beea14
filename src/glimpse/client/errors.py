"""Errors of calls: the gRPC status with the reason and the field that the server attaches to it."""

import re
from collections.abc import Iterable
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2

from glimpse.v1 import chat_pb2

_DETAILS_HEADER = "grpc-status-details-bin"
_REQUEST_ID_HEADER = "x-request-id"
_BEFORE_CAUSE = re.compile(r"^failed to connect to all addresses; last error: [A-Z_]+: \S+: ")
_NO_GRPC = "HTTP/2"
"""What gRPC says of a port with another protocol has this word."""


class GlimpseError(Exception):
    """A call that failed."""

    def __init__(
        self,
        status: grpc.StatusCode,
        message: str,
        *,
        reason: str = "",
        field: str | None = None,
        request_id: str = "",
        retry_after_seconds: float | None = None,
    ) -> None:
        place = f"'{field}': " if field and not message.startswith(f"'{field}'") else ""
        super().__init__(f"{status.name}: {place}{message}")
        self.status = status
        """The gRPC status code, such as INVALID_ARGUMENT or DEADLINE_EXCEEDED."""
        self.message = message
        """The server's explanation, or what to do where no server was reached."""
        self.reason = reason
        """The machine-readable reason, such as "context_length_exceeded"; docs/operations.md lists them. Empty where
        the error is not the server's."""
        self.field = field
        """The proto path of the invalid field, such as "messages[0].content[1].image.source"."""
        self.request_id = request_id
        """The id of the request in the server's log; empty where no server was reached."""
        self.retry_after_seconds = retry_after_seconds
        """When the same request may succeed, if the server says so. The client's own retries wait as long."""


class AnswerError(Exception):
    """An answer that is not a message of the type that was asked for: one that was cut, or that calls tools."""

    def __init__(
        self, message: str, response: chat_pb2.CreateChatCompletionResponse | chat_pb2.StreamChatCompletionResponse
    ) -> None:
        super().__init__(message)
        self.response = response
        """The response, with the text and the usage; of a stream, the chunk."""


def from_rpc_error(error: Any, target: str) -> GlimpseError:
    """Reads the details, `google.rpc.Status` in a trailer. `error` is also the call, which grpc's types do not say."""
    trailers: Iterable[tuple[str, str | bytes]] = error.trailing_metadata() or ()
    metadata = dict(trailers)
    details = status_pb2.Status.FromString(metadata.get(_DETAILS_HEADER, b""))  # type: ignore[arg-type]
    info, bad_request, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), None
    for detail in details.details:
        detail.Unpack(info)
        detail.Unpack(bad_request)
        found = error_details_pb2.RetryInfo()
        if detail.Unpack(found):
            retry = found
    fields = [violation.field for violation in bad_request.field_violations]
    message = error.details() or ""
    if error.code() is grpc.StatusCode.UNAVAILABLE and not info.reason:
        message = _unreached(message, target)
    return GlimpseError(
        error.code(),
        message,
        reason=info.reason.lower(),
        field=fields[0] if fields else None,
        request_id=str(metadata.get(_REQUEST_ID_HEADER, "")),
        retry_after_seconds=None if retry is None else retry.retry_delay.ToMicroseconds() / 1e6,
    )


def _unreached(details: str, target: str) -> str:
    """Returns what to do where no server answers."""
    if _NO_GRPC in details:
        return f"{target} does not speak gRPC: give the server's gRPC port (50051), or its gateway's (8080)"
    cause = _BEFORE_CAUSE.sub("", details)
    return f"Is the server running? `glimpse up` starts one. No answer from {target}: {cause}"
