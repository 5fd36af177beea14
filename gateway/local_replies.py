"""Errors of Envoy's own in the server's forms: OpenAI's, Anthropic's, and google.rpc.Status for typed methods."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import grpc

from glimpse.gateway import descriptors

MAX_HEADERS_KIB = 60
"""Size of a request's headers, above which it is refused."""

MAX_HEADERS = 100
"""Headers of a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _LocalReply:
    """The error that replaces an error of Envoy's own."""

    status: int
    replacement: int | None = None
    """The HTTP status that clients get in its place."""
    header: tuple[str, str] | None = None
    """A header of the request and a text that its value contains, where the error applies to such requests alone."""
    and_above: bool = False
    """Whether it also covers every greater status that has no earlier entry."""
    type: str = "invalid_request_error"
    """OpenAI's `type`."""
    code: str
    """OpenAI's `code`."""
    message: str
    """In Envoy's format language."""


_HEADERS_TOO_LARGE = (
    f"The request headers are too large: expected at most {MAX_HEADERS_KIB} KiB and {MAX_HEADERS} headers."
)

_UNAVAILABLE = _LocalReply(
    status=503, type="server_error", code="unavailable", message="The model server is not available."
)

_LOCAL_REPLIES = (
    _LocalReply(
        status=404,
        code="unknown_url",
        message="Unknown URL: %REQUEST_HEADER(:METHOD)% %PATH(NQ:ORIG_OR_PATH)%. %LOCAL_REPLY_BODY%",
    ),
    _LocalReply(
        status=405,
        code="method_not_allowed",
        message="%REQUEST_HEADER(:METHOD)% is not allowed on %PATH(NQ:ORIG_OR_PATH)%",
    ),
    _LocalReply(status=401, type="authentication_error", code="invalid_credential", message="%LOCAL_REPLY_BODY%"),
    # Envoy says nothing itself about the first two.
    _LocalReply(
        status=403,
        replacement=400,
        header=("connection", "upgrade"),
        code="invalid_request",
        message="'Upgrade': expected no such header, got %REQUEST_HEADER(UPGRADE)%; stream with server-sent events",
    ),
    _LocalReply(
        status=400,
        header=(":path", "%00"),
        code="invalid_request",
        message="The URL: expected a path without a null byte",
    ),
    _LocalReply(status=403, type="permission_error", code="permission_denied", message="%LOCAL_REPLY_BODY%"),
    _LocalReply(status=408, code="request_timeout", message="The request did not arrive in time."),
    _LocalReply(status=415, code="unsupported_media_type", message="%LOCAL_REPLY_BODY%"),
    _LocalReply(status=413, code="request_too_large", message="The request body is too large."),
    _LocalReply(status=431, code="headers_too_large", message=_HEADERS_TOO_LARGE),
    _UNAVAILABLE,
    # What answers at the server's address speaks no HTTP/2: another program may get the port of a server that died.
    replace(_UNAVAILABLE, status=502, replacement=503),
    _LocalReply(
        status=504,
        type="timeout_error",
        code="deadline_exceeded",
        message="The deadline passed before the answer began.",
    ),
    _LocalReply(status=500, and_above=True, type="server_error", code="internal_error", message="%LOCAL_REPLY_BODY%"),
    _LocalReply(status=400, and_above=True, code="invalid_request", message="%LOCAL_REPLY_BODY%"),
)


_SERVER_ERROR = 500

_ANTHROPIC_TYPES = {404: "not_found_error", 413: "request_too_large", 503: "overloaded_error"}
"""HTTP status → Anthropic's `type`, where it is another than OpenAI's."""

_GRPC_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    405: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""HTTP status → gRPC's. Of others, those below 500 are INVALID_ARGUMENT, as from the server, and the rest INTERNAL."""


def local_reply_mappers() -> Iterator[dict[str, Any]]:
    """Yields Envoy's mappers of its errors, of which the first that fits counts."""
    for reply in _LOCAL_REPLIES:
        yield from _mappers(reply)


def _mappers(reply: _LocalReply) -> Iterator[dict[str, Any]]:
    status = {
        "op": "GE" if reply.and_above else "EQ",
        "value": {"default_value": reply.status, "runtime_key": "glimpse.local_reply"},
    }
    matches: dict[str, Any] = {"status_code_filter": {"comparison": status}}
    if reply.header is not None:
        name, text = reply.header
        header = {"name": name, "string_match": {"contains": text, "ignore_case": True}}
        matches = _all_of(matches, {"header_filter": {"header": header}})
    replacement = {} if reply.replacement is None else {"status_code": reply.replacement}
    for applies, body in _BODIES:
        yield {"filter": _all_of(matches, applies), "body_format_override": body(reply), **replacement}
    yield {"filter": matches, "body_format_override": _openai_body(reply), **replacement}


def _all_of(*filters: dict[str, Any]) -> dict[str, Any]:
    return {"and_filter": {"filters": filters}}


def _is_below(*prefixes: str) -> list[dict[str, Any]]:
    """Returns filters, of which one applies to requests whose path begins so, before the transcoder or after it."""
    return [
        {"header_filter": {"header": {"name": name, "string_match": {"prefix": prefix}}}}
        for name in (":path", "x-envoy-original-path")
        for prefix in prefixes
    ]


def _any_of(filters: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"or_filter": {"filters": filters}}


def _status_body(reply: _LocalReply) -> dict[str, Any]:
    """Returns the body for clients of typed methods: google.rpc.Status, as the server's errors have it."""
    status = reply.replacement or reply.status
    code = _GRPC_CODES.get(status, grpc.StatusCode.INTERNAL if status >= _SERVER_ERROR else _GRPC_CODES[400])
    info = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": reply.code.upper(),
        "domain": "glimpse",
    }
    return {"json_format": {"code": code.value[0], "message": reply.message, "details": [info]}}


def _openai_body(reply: _LocalReply) -> dict[str, Any]:
    return {"json_format": {"error": _error(reply, reply.type)}}


def _anthropic_body(reply: _LocalReply) -> dict[str, Any]:
    status = reply.replacement or reply.status
    kind = _ANTHROPIC_TYPES.get(status, "api_error" if status == _SERVER_ERROR else reply.type)
    return {"json_format": {"type": "error", "error": _error(reply, kind)}}


def _error(reply: _LocalReply, kind: str) -> dict[str, Any]:
    return {"message": reply.message, "type": kind, "param": None, "code": reply.code}


_FROM_ANTHROPIC_CLIENT = {"header_filter": {"header": {"name": "anthropic-version", "present_match": True}}}
_BODIES: tuple[tuple[dict[str, Any], Callable[[_LocalReply], dict[str, Any]]], ...] = (
    (_any_of(_is_below(descriptors.TYPED_PATHS)), _status_body),
    (_any_of([*_is_below("/messages", "/v1/messages", "/anthropic/"), _FROM_ANTHROPIC_CLIENT]), _anthropic_body),
)
"""The filters of requests, and how their errors look; the first that applies counts. Others have OpenAI's form.
requests.lua has the same."""

MISSING_HOST = _openai_body(
    _LocalReply(status=400, code="missing_host", message="'Host': expected the server's host name, got no such header")
)
"""Body of the response to a request without a host name."""
