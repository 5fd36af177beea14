"""Registers handlers of the typed services with gRPC and maps their exceptions to statuses.

Handlers are looked up by full method name; the descriptors say whether a method is unary or streaming.
"""

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, TypeAlias, cast

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection import SERVICE_NAME
from grpc_reflection.v1alpha.reflection import aio as reflection_aio

from glimpse.dialect.options import http_option
from glimpse.server.call.context import CallContext
from glimpse.server.codec.parameters import ignored_parameters
from glimpse.server.errors import InvalidRequest
from glimpse.server.rpc.context import Rpc
from glimpse.server.rpc.errors import abort, to_status
from glimpse.server.rpc.json_messages import (
    failure_line,
    parse_body,
    parse_json,
    parse_lines,
    serialize,
    to_body,
    to_json,
    to_line,
)
from glimpse.server.rpc.request_size import parse_message
from glimpse.server.rpc.text_chunks import TextChunk
from glimpse.streams import Stream

V1_SERVICE_NAME = "grpc.reflection.v1.ServerReflection"
UnaryHandler = Callable[[Any, CallContext], Awaitable[Message]]
"""Takes the request, which it alone holds; for client-streaming methods an asynchronous iterator of requests."""
Responses: TypeAlias = AsyncGenerator[Message | TextChunk, None] | Stream[Any]
StreamHandler = Callable[[Any, CallContext], Responses]
Handler = UnaryHandler | StreamHandler

METHOD_HANDLERS: "dict[tuple[bool, bool], Callable[..., grpc.RpcMethodHandler[Any, Any]]]" = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}
"""(requests stream, responses stream) → the function that makes the method's handler."""


def add_typed_services(
    server: grpc.aio.Server, services: Iterable[ServiceDescriptor], handlers: Mapping[str, Handler]
) -> None:
    """Serves every method of the services; `handlers` maps full names such as "glimpse.v1.X.GetY" to handlers."""
    for service in services:
        methods = {method.name: _method_handler(method, handlers[method.full_name]) for method in service.methods}
        register_methods(server, service.full_name, methods)


def add_method_alias(server: grpc.aio.Server, method: MethodDescriptor, handler: Handler, full_name: str) -> None:
    """Serves a method under another full name too, such as "x.v1.X.GetY"; its messages are the same on the wire."""
    service_name, _, name = full_name.rpartition(".")
    methods = {name: _method_handler(method, handler)}
    register_methods(server, service_name, methods)


def register_methods(
    server: grpc.aio.Server, service_name: str, methods: "Mapping[str, grpc.RpcMethodHandler[Any, Any]]"
) -> None:
    """Serves the methods of a service, by their names, each from a queue of its own.

    The server accepts RPCs from these queues in turn. In the queue that gRPC keeps for all unregistered methods,
    ListModels would wait until every chat request that came before it is accepted.
    """
    # The type stubs do not have this function.
    server.add_registered_method_handlers(service_name, dict(methods))  # pyright: ignore[reportAttributeAccessIssue]


def _method_handler(method: MethodDescriptor, handler: Any) -> "grpc.RpcMethodHandler[Any, Any]":
    wrap = _streaming if method.server_streaming else _unary
    request_class = GetMessageClass(method.input_type)
    if method.client_streaming:
        parse: _Parse = partial(_parse_each, request_class)
    else:
        parse = partial(_parse_only, request_class, bool(http_option(method).body))

    async def read(messages: AsyncIterable[bytes], rpc: Rpc) -> Any:
        if rpc.codec == "http":
            rpc.call.ignored_fields += ignored_parameters(method, rpc.url)
        return await parse(messages, rpc)

    # All requests are read as streams, which are the same on the wire: gRPC keeps a unary request until the call ends.
    return METHOD_HANDLERS[True, method.server_streaming](wrap(handler, read), response_serializer=serialize)


_Parse: TypeAlias = Callable[[Any, Rpc], Awaitable[Any]]
"""Turns what gRPC passes to a handler into the request."""


async def _parse_each(
    request_class: type[Message], messages: AsyncIterable[bytes], rpc: Rpc
) -> AsyncGenerator[Message]:
    """Returns the messages of a stream of requests, parsed."""
    await rpc.call.ticket.begin()
    match rpc.codec:
        case "json":
            raise InvalidRequest("", "expected application/connect+proto for a stream of requests, got JSON")
        case "http":
            return parse_lines(request_class, messages, rpc.call.client)
        case _:
            return (request_class.FromString(message) async for message in messages)


async def _parse_only(
    request_class: type[Message], has_body: bool, messages: AsyncIterable[bytes], rpc: Rpc
) -> Message:
    """Reads and parses the message of a unary request. `has_body`: over HTTP it comes as a body, not in the URL."""
    if rpc.codec == "http" and has_body:
        return await parse_body(request_class, messages, rpc.call)
    await rpc.call.ticket.begin()
    async with aclosing(cast("AsyncGenerator[bytes, None]", aiter(messages))) as unread:  # which has the last message
        data = await anext(unread, None)
    if data is None:
        raise InvalidRequest("", f"expected a {request_class.DESCRIPTOR.full_name} message, got none", "missing_value")
    rpc.call.body.reserve(len(data))
    return await (parse_json if rpc.codec == "json" else parse_message)(request_class, data, rpc.call.client)


_Encode: TypeAlias = Callable[[Message, str], Awaitable[Message | bytes]]


async def _encoded(response: Message, rpc: Rpc) -> Message | bytes:
    encode = _ENCODERS.get(rpc.codec)
    return response if encode is None else await encode(response, rpc.call.client)


_ENCODERS: Mapping[str | None, _Encode] = {"json": to_json, "http": to_body}
_CHUNK_ENCODERS: Mapping[str | None, _Encode] = {"json": to_json, "http": to_line}


def _unary(handler: UnaryHandler, parse: _Parse) -> Callable[[Any, Rpc], Awaitable[Message | bytes]]:
    async def serve(request: Any, rpc: Rpc) -> Message | bytes:
        try:
            async with rpc.stop.guard():
                response = await _encoded(await handler(await parse(request, rpc), rpc.call), rpc)
            await rpc.send_headers()
        except Exception as error:  # to_status maps every exception
            await abort(rpc, to_status(error, rpc.call.request_id))
        return response

    return serve


def _streaming(handler: StreamHandler, parse: _Parse) -> Callable[[Any, Rpc], Awaitable[None]]:
    # A coroutine that writes, not a generator: if the RPC is cancelled during a write, the handler closes at once.
    async def serve(request: Any, rpc: Rpc) -> None:
        try:
            async with rpc.stop.guard(), aclosing(handler(await parse(request, rpc), rpc.call)) as responses:
                await _write(responses, rpc)
        except Exception as error:  # to_status maps every exception
            failure = to_status(error, rpc.call.request_id)
            if rpc.codec == "http" and rpc.headers_sent and rpc.stop.can_write:
                await rpc.context.write(failure_line(failure))
            await abort(rpc, failure)

    return serve


async def _write(responses: Responses, rpc: Rpc) -> None:
    encode = _CHUNK_ENCODERS.get(rpc.codec)
    if encode is None and isinstance(responses, Stream):
        responses.receiver = rpc.receiver(serialize)
    async for response in responses:
        if not rpc.headers_sent:
            await rpc.send_headers()
        if encode is not None:
            message = response.copy() if isinstance(response, TextChunk) else response
            await rpc.write(await encode(message, rpc.call.client))
        else:
            await rpc.write(serialize(response))


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
