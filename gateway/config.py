"""Writes Envoy's configuration: the template, filled in from the API's descriptors and the flags.

Values are inserted as JSON, which is valid YAML.
"""

import json
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter, Token
from pydantic import TypeAdapter

from glimpse.gateway import connect, descriptors
from glimpse.gateway.access import origin_matchers, request_checks
from glimpse.gateway.address import Address
from glimpse.gateway.authentication.filters import clusters as authentication_clusters
from glimpse.gateway.authentication.filters import http_filters, lines, route_options
from glimpse.gateway.local_replies import MAX_HEADERS, MAX_HEADERS_KIB, MISSING_HOST, local_reply_mappers
from glimpse.gateway.options import DEFAULT_LIMITS, AddressFlag, GatewayLimits, PublicOptions
from glimpse.gateway.page.path_hints import unknown_path_routes
from glimpse.gateway.page.static_files import largest, static_files, static_routes
from glimpse.gateway.replicas import affinity, clusters, refusals, routes
from glimpse.gateway.telemetry import Telemetry
from glimpse.gateway.tls import NO_UPSTREAM_TLS, UpstreamTls, listener_socket, upstream_socket
from glimpse.identity.authentication import NO_AUTHENTICATION, AuthenticationOptions
from glimpse.identity.tls import PLAIN_TEXT, ListenerTls
from glimpse.identity.tokens import build_verifier
from glimpse.native.open_files import MAX_CONNECTIONS

_HERE = Path(__file__).parent

STAT_PREFIX = "glimpse"
"""The prefix of this gateway's statistics in Envoy."""

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


def _addresses(_: type[tuple[Address, ...]], tokens: list[Token]) -> tuple[Address, ...]:
    return tuple(Address.parse(token.value) for token in tokens)


_Addresses = Annotated[
    tuple[Address, ...],
    # Not JSON: the address [::1]:50051 begins like a list.
    Parameter(converter=_addresses, n_tokens=1, accepts_keys=False, negative="", json_list=False),
]

LISTEN = Address(host="127.0.0.1", port=8080)
UPSTREAM = Address(host="127.0.0.1", port=50051)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions(PublicOptions):
    """What a gateway does, wherever its Envoy runs."""

    listen: AddressFlag = LISTEN
    """Address for clients. Port 0 takes a free one."""
    upstream: _Addresses = (UPSTREAM,)
    """A server's gRPC address; a name may resolve to several. Repeat the flag for more."""
    route_by_key: bool | None = None
    """Send requests with the same prompt_cache_key, or the same beginning of a conversation, to the same server.
    Default: where there may be several, that is, with several addresses or a name."""
    metrics_upstream: AddressFlag | None = None
    """The server's Prometheus endpoint, to be served as /metrics. For a gateway with a single server. Default: none."""
    tls: ListenerTls = PLAIN_TEXT
    api_keys: Path | None = None
    """Refused: the server judges API keys, with its own --api-keys."""
    authentication: AuthenticationOptions = NO_AUTHENTICATION
    """How the gateway learns who is calling. By default every request reaches the server, which may check."""
    upstream_tls: UpstreamTls = NO_UPSTREAM_TLS
    limits: GatewayLimits = DEFAULT_LIMITS
    """Bounds on connections and memory."""

    def with_public(self, text: str) -> "GatewayOptions":
        """Returns these options with the `PublicOptions` of a JSON object."""
        public = TypeAdapter(PublicOptions).validate_json(text)
        return replace(self, **{field.name: getattr(public, field.name) for field in fields(public)})

    @property
    def routes_by_key(self) -> bool:
        return clusters.may_be_several(self.upstream) if self.route_by_key is None else self.route_by_key

    def check(self) -> None:
        """Raises ValueError or IdentityConfigError where options contradict each other or a file cannot be used.

        The message is for the user.
        """
        if self.api_keys is not None:
            raise ValueError(_NO_KEYS)
        self.check_names()
        self.tls.check()
        self.authentication.check(has_client_ca=self.tls.tls_client_ca is not None)
        build_verifier(self.authentication)
        self.upstream_tls.check()


_NO_KEYS = (
    "'--api-keys': expected with `glimpse serve` or `glimpse up`, got it with `glimpse gateway`, which passes keys on "
    "to the server that judges them; /metrics, with --metrics-upstream, is then open to all who reach the gateway"
)

_ACCESS_LOG_FORMAT = (
    "%START_TIME% %REQUEST_HEADER(X-ENVOY-ORIGINAL-METHOD?:METHOD)% %PATH(NQ:ORIG_OR_PATH)% "
    "%RESPONSE_CODE% %RESPONSE_CODE_DETAILS% received=%BYTES_RECEIVED% sent=%BYTES_SENT% ms=%DURATION% "
    "prompt_tokens=%TRAILER(X-GLIMPSE-PROMPT-TOKENS)% completion_tokens=%TRAILER(X-GLIMPSE-COMPLETION-TOKENS)% "
    "request_id=%REQUEST_HEADER(X-REQUEST-ID)% server=%UPSTREAM_HOST% trace_id=%TRACE_ID%\n"
)


def write_config(folder: Path, options: GatewayOptions, *, admin: Address | Path) -> Path:
    """Writes Envoy's configuration and the files that it refers to, and returns its path.

    Args:
        folder: where the files go; Envoy must see it under the same path.
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
    limits = options.limits
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
        "missing_host": MISSING_HOST,
        "max_connections": limits.max_connections or MAX_CONNECTIONS,
        "max_heap_bytes": limits.max_heap_bytes,
        "max_idle": f"{limits.max_idle_seconds}s",
        "max_mute": f"{limits.max_mute_seconds}s",
        "max_age": None if limits.max_connection_age is None else f"{limits.max_connection_age}s",
        "max_headers_kib": MAX_HEADERS_KIB,
        "max_headers_count": MAX_HEADERS,
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
    max_pause = f"{options.limits.max_pause_seconds}s"
    return {
        "telemetry_routes": _items(telemetry.routes),
        "telemetry_clusters": _items(telemetry.clusters),
        "local_replies": _items([*local_reply_mappers()]),
        "grpc_routes": _items(routes.grpc_routes(by_key=by_key, max_pause=max_pause)),
        "connect_routes": _items(routes.connect_routes(by_key=by_key, max_pause=max_pause) if options.connect else []),
        "http_routes": _items(routes.http_routes(by_key=by_key, max_pause=max_pause)),
        "connect_filter": _items([connect.http_filter()] if options.connect else []),
        "static_routes": _items(static),
        "unknown_path_routes": _items(unknown_path_routes(page=options.page, max_wait=max_pause)),
        "affinity_filter": _items([affinity.http_filter()] if by_key else []),
        "key_listener": _items([affinity.key_listener()] if by_key else []),
        "refusal_filters": _items(refusals.http_filters()),
        "authentication_filters": _items(http_filters(authentication)),
        "authentication_clusters": _items(authentication_clusters(authentication)),
        "authentication_options": lines(route_options(authentication)),
        "clusters": _clusters(options, folder, by_key=by_key),
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


def _clusters(options: GatewayOptions, folder: Path, *, by_key: bool) -> str:
    template = (_HERE / "cluster.template.yaml").read_text(encoding="utf-8")
    hosts = [each.host for each in options.upstream]
    common = {
        "max_silent": f"{options.limits.max_silent_seconds}s",
        "max_upstream_streams": str(_MAX_UPSTREAM_STREAMS),
        "buffer_bytes": str(_BUFFER_BYTES),
        "upstream_window_bytes": str(_MAX_UPSTREAM_STREAMS * _BUFFER_BYTES),
        "transport_socket": json.dumps(upstream_socket(options.upstream_tls, hosts, folder)),
        "endpoints": json.dumps([{"endpoint": {"address": each.of_envoy}} for each in options.upstream]),
    }
    names = (clusters.BY_LOAD, clusters.BY_KEY) if by_key else (clusters.BY_LOAD,)
    policies = {name: clusters.lb_policy(name, by_key=by_key) for name in names}
    texts = [_fill(template, common | {"cluster": name, "lb_policy": json.dumps(policies[name])}) for name in names]
    return "".join([*texts, _items([affinity.key_cluster()] if by_key else [])])


def _allowed_methods() -> list[str]:
    # Every grpc-web call is a POST.
    return sorted({"POST"}.union(*descriptors.http_paths().values()))


def _access_log() -> dict[str, Any]:
    return {
        "name": "stdout",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StdoutAccessLog",
            "log_format": {"text_format_source": {"inline_string": _ACCESS_LOG_FORMAT}},
        },
    }
