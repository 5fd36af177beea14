"""Connect's protocol, with --connect: Envoy turns its requests into gRPC, on the routes from here.

Elsewhere the filter is off. It would take any GET with `connect=v1` in its query for a request, which a web page could
send without asking.
"""

from typing import Any

MAX_UNARY_BYTES = 8 << 20
"""Size of a unary request: Envoy holds it whole, because gRPC needs its length first. Streams have no such limit."""

_FILTER = "connect"
_CONTENT_TYPES = r"application/(connect\+)?(proto|json)(\s*;.*)?"

PATH_PREFIX = "/glimpse.v1."
"""Prefix of the typed methods' paths."""

HEADERS: list[dict[str, Any]] = [
    {"name": ":method", "string_match": {"exact": "POST"}},
    {"name": "content-type", "string_match": {"safe_regex": {"regex": _CONTENT_TYPES}}},
]
"""What a request in this protocol has. A web page may send these content types elsewhere only where CORS allows it."""


def http_filter() -> dict[str, Any]:
    """Returns the filter, which is off except on routes that turn it on."""
    kind = "type.googleapis.com/envoy.extensions.filters.http.connect_grpc_bridge.v3.FilterConfig"
    return {"name": _FILTER, "disabled": True, "typed_config": {"@type": kind}}


def turned_on(route: dict[str, Any]) -> dict[str, Any]:
    kind = "type.googleapis.com/envoy.config.route.v3.FilterConfig"
    filters = route.get("typed_per_filter_config", {}) | {_FILTER: {"@type": kind, "config": {}}}
    return route | {"typed_per_filter_config": filters, "request_body_buffer_limit": MAX_UNARY_BYTES}
