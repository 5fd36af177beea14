"""Registers handlers of the typed services with gRPC and maps their exceptions to statuses.

Handlers are looked up by full method name; the descriptors say whether a method is unary or streaming.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from glimpse.server.rpc.context import send_headers
from glimpse.server.rpc.errors import abort, to_status

Context = grpc.aio.ServicerContext[Any, Any]
UnaryHandler = Callable[[Any, Context], Awaitable[Message]]
"""Takes the request; for client-streaming methods an asynchronous iterator of requests."""
StreamHandler = Callable[[Any, Context], AsyncGenerator[Message, None]]
Handler = UnaryHandler | StreamHandler

_REGISTER: "dict[tuple[bool, bool], Callable[..., grpc.RpcMethodHandler[Any, Any]]]" = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
}
"""(client streams, server streams) → function that makes the method's handler."""


def add_typed_services(
    server: grpc.aio.Server, services: Iterable[ServiceDescriptor], handlers: Mapping[str, Handler]
) -> None:
    """Serves every method of the services; `handlers` maps full names such as "glimpse.v1.X.GetY" to handlers."""
    for service in services:
        methods = {method.name: _method_handler(method, handlers[method.full_name]) for method in service.methods}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, methods),))


def add_method_alias(server: grpc.aio.Server, method: MethodDescriptor, handler: Handler, full_name: str) -> None:
    """Serves a method under another full name too, such as "x.v1.X.GetY"; its messages are the same on the wire."""
    service_name, _, name = full_name.rpartition(".")
    methods = {name: _method_handler(method, handler)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service_name, methods),))


def _method_handler(method: MethodDescriptor, handler: Any) -> "grpc.RpcMethodHandler[Any, Any]":
    wrap = _streaming if method.server_streaming else _unary
    return _REGISTER[method.client_streaming, method.server_streaming](
        wrap(handler),
        request_deserializer=GetMessageClass(method.input_type).FromString,
        response_serializer=GetMessageClass(method.output_type).SerializeToString,
    )


def _unary(handler: UnaryHandler) -> Callable[[Message, Context], Awaitable[Message]]:
    async def serve(request: Any, context: Context) -> Message:
        try:
            response = await handler(request, context)
        except Exception as error:  # to_status maps every exception
            await abort(context, to_status(error))
        await send_headers(context)
        return response

    return serve


def _streaming(handler: StreamHandler) -> Callable[[Message, Context], Awaitable[None]]:
    # A coroutine that writes, not a generator: if the RPC is cancelled during a write, the handler closes at once.
    async def serve(request: Message, context: Context) -> None:
        try:
            async with aclosing(handler(request, context)) as responses:
                await _write(responses, context)
        except Exception as error:  # to_status maps every exception
            await abort(context, to_status(error))

    return serve


async def _write(responses: AsyncGenerator[Message, None], context: Context) -> None:
    headers_sent = False
    async for response in responses:
        if not headers_sent:
            await send_headers(context)
            headers_sent = True
        await context.write(response)
