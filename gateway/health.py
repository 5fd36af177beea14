"""Checks the health of a gRPC server, for container probes."""

import grpc
from grpc_health.v1 import health_pb2

from glimpse.gateway.address import Address
from glimpse.gateway.tls import NO_UPSTREAM_TLS, UpstreamTls

_TIMEOUT_SECONDS = 3.0

_CHECK = f"/{health_pb2.DESCRIPTOR.services_by_name['Health'].full_name}/Check"


def is_serving(address: Address, tls: UpstreamTls = NO_UPSTREAM_TLS) -> bool:
    """Whether the server reports SERVING in time."""
    with _channel(address, tls) as channel:
        check = channel.unary_unary(
            _CHECK,
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        try:
            answer = check(health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_SECONDS)
        except grpc.RpcError:
            return False
    return answer.status == health_pb2.HealthCheckResponse.SERVING


def _channel(address: Address, tls: UpstreamTls) -> grpc.Channel:
    if tls.upstream_ca is None:
        return grpc.insecure_channel(str(address))
    files = (tls.upstream_ca, tls.upstream_key, tls.upstream_certificate)
    credentials = grpc.ssl_channel_credentials(*(None if path is None else path.read_bytes() for path in files))
    name = tls.upstream_server_name
    options = [] if name is None else [("grpc.ssl_target_name_override", name)]
    return grpc.secure_channel(str(address), credentials, options)
