"""What the gateway passes on about itself and its server: traces to a collector, and the server's metrics."""

from dataclasses import dataclass
from typing import Any

from glimpse.gateway.address import Address
from glimpse.gateway.replicas.clusters import named

_SERVICE_NAME = "glimpse-gateway"
_METRICS_CLUSTER = "glimpse_metrics"
_OTLP_CLUSTER = "otlp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """Where the gateway finds metrics, and where it sends traces."""

    metrics: Address | None = None
    """The server's Prometheus endpoint, which the gateway serves as /metrics. For a gateway with a single server, such
    as a sidecar. None: /metrics is 404."""
    otlp: Address | None = None
    """An OpenTelemetry collector's address for OTLP over gRPC, in plain text. None: the gateway has no spans; callers'
    `traceparent` reaches the server unchanged."""

    @property
    def tracing(self) -> dict[str, Any] | None:
        """Envoy's `tracing` of the connection manager."""
        if self.otlp is None:
            return None
        provider = {
            "@type": "type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig",
            "grpc_service": {"envoy_grpc": {"cluster_name": _OTLP_CLUSTER}, "timeout": "1s"},
            "service_name": _SERVICE_NAME,
        }
        request_id = {"tag": "glimpse.request_id", "request_header": {"name": "x-request-id"}}
        return {
            "provider": {"name": "envoy.tracers.opentelemetry", "typed_config": provider},
            # The server's span is the child of the attempt that reached it, of several if the request was repeated.
            "spawn_upstream_span": True,
            "custom_tags": [request_id],
        }

    @property
    def routes(self) -> list[dict[str, Any]]:
        """Envoy's routes to the metrics."""
        if self.metrics is None:
            return []
        get = {"name": ":method", "string_match": {"exact": "GET"}}
        # On a loopback address the server answers under names of its machine alone; clients of the gateway use another.
        target = {"cluster": _METRICS_CLUSTER, "host_rewrite_literal": "localhost", "timeout": "10s"}
        return [
            {"match": {"path": "/metrics", "headers": [get]}, "route": target},
            {
                "match": {"path": "/metrics"},
                "direct_response": {"status": 405},
                "response_headers_to_add": [{"header": {"key": "allow", "value": "GET"}}],
            },
        ]

    @property
    def clusters(self) -> list[dict[str, Any]]:
        """Envoy's clusters."""
        http2 = {"explicit_http_config": {"http2_protocol_options": {}}}
        protocol = {"@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions"} | http2
        clusters: list[dict[str, Any]] = []
        if self.metrics is not None:
            clusters.append(named(_METRICS_CLUSTER, self.metrics))
        if self.otlp is not None:
            extension = {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": protocol}
            clusters.append(named(_OTLP_CLUSTER, self.otlp, typed_extension_protocol_options=extension))
        return clusters
