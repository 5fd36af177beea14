"""Checks the health of a gRPC server, for container probes."""

import grpc
from grpc_health.v1 import health_pb2

from glimpse.gateway.address import Address

_TIMEOUT_SECONDS = 3.0

_CHECK = f"/{health_pb2.DESCRIPTOR.services_by_name['Health'].full_name}/Check"


def is_serving(address: Address) -> bool:
    """Whether the server reports SERVING in time."""
    with grpc.insecure_channel(str(address)) as channel:
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
