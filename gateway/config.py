"""Writes Envoy's configuration: the template, filled in from the API's descriptors and the flags.

Values are inserted as JSON, which is valid YAML.
"""

import json
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc

from glimpse.gateway import connect, descriptors
from glimpse.gateway.access import origin_matchers, request_checks
from glimpse.gateway.address import Address
from glimpse.gateway.authentication.filters import EVERYONE, Authentication, http_filters, lines, route_options
from glimpse.gateway.authentication.filters import clusters as authentication_clusters
from glimpse.gateway.options import DEFAULT_LIMITS, Limits, PublicOptions
from glimpse.gateway.page.path_hints import unknown_path_routes
from glimpse.gateway.page.static_files import largest, static_files, static_routes
from glimpse.gateway.replicas import affinity, clusters, routes
from glimpse.gateway.telemetry import Telemetry
from glimpse.gateway.tls import NO_UPSTREAM_TLS, Tls, UpstreamTls, listener_socket, upstream_socket

_HERE = Path(__file__).parent

STAT_PREFIX = "glimpse"
"""The prefix of this gateway's statistics in Envoy."""

MAX_HEADERS_KIB = 60
"""Size of a request's headers, above which it is refused."""

_MAX_HEADERS = 100
"""Headers of a request."""

_BUFFER_BYTES = 256 << 10
"""What Envoy holds of a request or a response that the other side does not read, for each connection and stream."""

_READ_BYTES = 32 << 10
"""What a worker reads of a client's connection before it turns to others: thousands of frames, if each has a byte."""

_RETRY_BYTES = 1 << 20
"""Size of a request's body up to which Envoy keeps it, to send it to another server if the first cannot take it."""

_UNLIMITED_KBPS = 1 << 40
"""KiB a second, more than any connection has."""

_MAX_STREAMS = 512
"""Concurrent streams of a client's HTTP/2 connection. gRPC clients let further calls wait."""

_MAX_UPSTREAM_STREAMS = 100
"""Concurrent streams of a connection to the server; further streams get another connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions(PublicOptions):
    """What a gateway does, wherever its Envoy runs."""

    listen: Address
    """For clients. Port 0 takes a free one."""
    upstream: Address | Sequence[Address]
    """The gRPC addresses of the servers; a name may resolve to several replicas."""
    tls: Tls | None = None
    """The listener's certificate; Envoy must be able to read its files. None: plain text."""
    authentication: Authentication = EVERYONE
    """How the gateway learns who is calling."""
    upstream_tls: UpstreamTls = NO_UPSTREAM_TLS
    """TLS of connections to the servers."""
    limits: Limits | None = None
    """Bounds on connections and memory. None: the default ones, and no more connections than an Envoy that runs here
    may have."""
    by_key: bool | None = None
    """Requests are routed by key. None: where there may be several servers."""
    metrics_upstream: Address | None = None
    """The server's Prometheus endpoint, which the gateway serves as /metrics. None: /metrics is 404."""

    @property
    def upstreams(self) -> Sequence[Address]:
        """The addresses of the servers, at least one."""
        return [self.upstream] if isinstance(self.upstream, Address) else self.upstream

    @property
    def routes_by_key(self) -> bool:
        """Requests are routed by key."""
        return clusters.may_be_several(self.upstreams) if self.by_key is None else self.by_key


_ACCESS_LOG_FORMAT = (
    "%START_TIME% %REQUEST_HEADER(X-ENVOY-ORIGINAL-METHOD?:METHOD)% %PATH(NQ:ORIG_OR_PATH)% "
    "%RESPONSE_CODE% %RESPONSE_CODE_DETAILS% received=%BYTES_RECEIVED% sent=%BYTES_SENT% ms=%DURATION% "
    "prompt_tokens=%TRAILER(X-GLIMPSE-PROMPT-TOKENS)% completion_tokens=%TRAILER(X-GLIMPSE-COMPLETION-TOKENS)% "
    "request_id=%REQUEST_HEADER(X-REQUEST-ID)% server=%UPSTREAM_HOST% trace_id=%TRACE_ID%\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LocalReply:
    """The OpenAI error that replaces an error of Envoy's own."""

    status: int
    """The HTTP status."""
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
    f"The request headers are too large: expected at most {MAX_HEADERS_KIB} KiB and {_MAX_HEADERS} headers."
)

_MISSING_HOST = _LocalReply(
    status=400, code="missing_host", message="'Host': expected the server's host name, got no such header"
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


def write_config(folder: Path, options: GatewayOptions, *, admin: Address | Path) -> Path:
    """Writes Envoy's configuration and the files that it refers to, and returns its path.

    Args:
        folder: where the files go; Envoy must see it under the same path.
        options: what the gateway does.
        admin: the address of Envoy's admin interface, or the path of a Unix socket that Envoy creates.
    """
    descriptor_path = folder / "api.binpb"
    descriptor_path.write_bytes(descriptors.transcoder_set().SerializeToString())
    values = {
        "admin": {"pipe": {"path": str(admin), "mode": 0o600}} if isinstance(admin, Path) else admin.of_envoy,
        "descriptor_path": str(descriptor_path),
        **_values(options, folder),
    }
    texts = {name: json.dumps(value) for name, value in values.items()} | _blocks(options, folder)
    config_path = folder / "envoy.yaml"
    config_path.write_text(_fill((_HERE / "envoy.template.yaml").read_text(encoding="utf-8"), texts), encoding="utf-8")
    return config_path


def _values(options: GatewayOptions, folder: Path) -> dict[str, Any]:
    """Returns values of the template by their names."""
    limits = options.limits or DEFAULT_LIMITS
    origins, hosts = options.allow_origin, options.allowed_host
    return {
        "stat_prefix": STAT_PREFIX,
        "listen_host": options.listen.host,
        "listen_port": options.listen.port,
        "bootstrap_extensions": [affinity.bootstrap_extension()] if options.routes_by_key else [],
        "transcoded_services": [service.full_name for service in descriptors.transcoded_services()],
        "allowed_origins": origin_matchers(options.listen, origins),
        "request_checks": request_checks(options.listen, origins=origins, hosts=hosts),
        "allowed_methods": ", ".join(_allowed_methods()),
        "access_log": [_access_log()] if options.access_log else [],
        "tracing": _telemetry(options).tracing,
        "transport_socket": listener_socket(options.tls, folder),
        "missing_host": _json_body(_MISSING_HOST),
        "max_connections": limits.max_connections,
        "max_heap_bytes": limits.max_heap_bytes,
        "max_idle": f"{limits.max_idle_seconds}s",
        "max_mute": f"{limits.max_mute_seconds}s",
        "max_age": None if limits.max_age_seconds is None else f"{limits.max_age_seconds}s",
        "max_headers_kib": MAX_HEADERS_KIB,
        "max_headers_count": _MAX_HEADERS,
        "buffer_bytes": _BUFFER_BYTES,
        "read_bytes": _READ_BYTES,
        "retry_bytes": _RETRY_BYTES,
        "max_unread": f"{limits.max_unread_seconds}s",
        "unlimited_kbps": _UNLIMITED_KBPS,
        "max_streams": _MAX_STREAMS,
        "downstream_window_bytes": 64 * _BUFFER_BYTES,
        "max_static_bytes": largest(static_files(page=options.page)),
    }


def _blocks(options: GatewayOptions, folder: Path) -> dict[str, str]:
    """Returns lines of YAML by their names in the template."""
    by_key, telemetry, authentication = options.routes_by_key, _telemetry(options), options.authentication
    static = static_routes(static_files(page=options.page), folder / "static", is_authenticated=authentication.is_on)
    max_pause = f"{(options.limits or DEFAULT_LIMITS).max_pause_seconds}s"
    return {
        "telemetry_routes": _items(telemetry.routes),
        "telemetry_clusters": _items(telemetry.clusters),
        "local_replies": _items([mapper for reply in _LOCAL_REPLIES for mapper in _local_reply_mappers(reply)]),
        "grpc_routes": _items(routes.grpc_routes(by_key=by_key, max_pause=max_pause)),
        "connect_routes": _items(routes.connect_routes(by_key=by_key, max_pause=max_pause) if options.connect else []),
        "http_routes": _items(routes.http_routes(by_key=by_key, max_pause=max_pause)),
        "connect_filter": _items([connect.http_filter()] if options.connect else []),
        "static_routes": _items(static),
        "unknown_path_routes": _items(unknown_path_routes(page=options.page)),
        "affinity_filter": _items([affinity.http_filter()] if by_key else []),
        "key_listener": _items([affinity.key_listener()] if by_key else []),
        "authentication_filters": _items(http_filters(authentication)),
        "authentication_clusters": _items(authentication_clusters(authentication)),
        "authentication_options": lines(route_options(authentication)),
        "clusters": _clusters(options.upstreams, options.upstream_tls, folder, by_key=by_key),
        "requests_lua": (_HERE / "requests.lua").read_text(encoding="utf-8"),
        "errors_lua": (_HERE / "errors.lua").read_text(encoding="utf-8"),
    }


def _telemetry(options: GatewayOptions) -> Telemetry:
    return Telemetry(metrics=options.metrics_upstream, otlp=options.otlp_endpoint)


def _fill(template: str, texts: dict[str, str]) -> str:
    """Replaces each ${name} by its text. Where it is alone on a line, each line of the text gets its indent."""

    def text_of(match: re.Match[str]) -> str:
        return textwrap.indent(texts[match["name"]].rstrip("\n"), match["indent"] or "")

    return re.sub(r"(?P<indent>^ +)?\${(?P<name>\w+)}", text_of, template, flags=re.MULTILINE)


def _items(values: Sequence[Any]) -> str:
    return "\n".join(f"- {json.dumps(value)}" for value in values)


def _clusters(upstreams: Sequence[Address], tls: UpstreamTls, folder: Path, *, by_key: bool) -> str:
    template = (_HERE / "cluster.template.yaml").read_text(encoding="utf-8")
    common = {
        "max_upstream_streams": str(_MAX_UPSTREAM_STREAMS),
        "buffer_bytes": str(_BUFFER_BYTES),
        "upstream_window_bytes": str(_MAX_UPSTREAM_STREAMS * _BUFFER_BYTES),
        "transport_socket": json.dumps(upstream_socket(tls, [each.host for each in upstreams], folder)),
        "endpoints": json.dumps([{"endpoint": {"address": each.of_envoy}} for each in upstreams]),
    }
    names = (clusters.BY_LOAD, clusters.BY_KEY) if by_key else (clusters.BY_LOAD,)
    policies = {name: clusters.lb_policy(name, by_key=by_key) for name in names}
    texts = [_fill(template, common | {"cluster": name, "lb_policy": json.dumps(policies[name])}) for name in names]
    return "".join([*texts, _items([affinity.key_cluster()] if by_key else [])])


def _allowed_methods() -> list[str]:
    # Every grpc-web call is a POST.
    return sorted({"POST"}.union(*descriptors.http_paths().values()))


def _local_reply_mappers(reply: _LocalReply) -> Iterator[dict[str, Any]]:
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
    yield {"filter": _all_of(matches, _IS_TYPED), "body_format_override": _status_body(reply), **replacement}
    yield {"filter": matches, "body_format_override": _json_body(reply), **replacement}


def _all_of(*filters: dict[str, Any]) -> dict[str, Any]:
    return {"and_filter": {"filters": filters}}


_IS_TYPED = {
    "or_filter": {
        "filters": [
            {"header_filter": {"header": {"name": name, "string_match": {"prefix": descriptors.TYPED_PATHS}}}}
            for name in (":path", "x-envoy-original-path")
        ]
    }
}
"""Whether a request is for a typed method as JSON, before the transcoder or after it."""


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


def _json_body(reply: _LocalReply) -> dict[str, Any]:
    error = {"message": reply.message, "type": reply.type, "param": None, "code": reply.code}
    return {"json_format": {"error": error}}


def _access_log() -> dict[str, Any]:
    return {
        "name": "stdout",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StdoutAccessLog",
            "log_format": {"text_format_source": {"inline_string": _ACCESS_LOG_FORMAT}},
        },
    }
