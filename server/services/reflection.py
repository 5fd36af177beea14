"""gRPC server reflection: v1alpha, which the library implements, and v1, whose messages are the same."""

from collections.abc import Iterable

import grpc
import grpc.aio
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection import SERVICE_NAME
from grpc_reflection.v1alpha.reflection import aio as reflection_aio

V1_SERVICE_NAME = "grpc.reflection.v1.ServerReflection"


def add_reflection(server: grpc.aio.Server, service_names: Iterable[str]) -> None:
    """Makes these services, and reflection itself, discoverable."""
    servicer = reflection_aio.ReflectionServicer([*service_names, SERVICE_NAME])
    method = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    for name in (SERVICE_NAME, V1_SERVICE_NAME):
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": method}),))
