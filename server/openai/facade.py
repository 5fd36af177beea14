"""The OpenAI door: JSON bodies in and out, the typed handlers behind them, all by the methods' bindings.

Knows no endpoint by name. What it adds to a typed method is the encoding: the body is collected and decoded, the answer
is one document or a row of server-sent events. Deadlines are the handlers', who raise before the client's own ends.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Any, cast

import grpc
import grpc.aio
from google.api.httpbody_pb2 import HttpBody
from google.protobuf.message_factory import GetMessageClass

from glimpse.dialect.bindings import Binding, bindings
from glimpse.dialect.options import descriptor_of
from glimpse.openai.v1 import openai_pb2
from glimpse.server.openai.codec import encode
from glimpse.server.openai.failures import error_object, in_json_terms
from glimpse.server.openai.requests import Question, collect, read_question
from glimpse.server.rpc.context import send_headers
from glimpse.server.rpc.errors import RpcFailure, abort
from glimpse.server.rpc.typed_handlers import Context, Handler, StreamHandler, UnaryHandler

UNKNOWN_FIELDS_HEADER = "x-glimpse-unknown-fields"
"""Names, by their JSON paths, the members of a request that were not understood and so changed nothing."""
MAX_UNKNOWN_FIELDS_CHARACTERS = 1024
"""Headers are small; what a client sends need not be."""

_JSON = "application/json"
_EVENTS = "text/event-stream"

_REGISTER: "dict[tuple[bool, bool], Callable[..., grpc.RpcMethodHandler[Any, Any]]]" = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}
"""(requests stream, responses stream) → how such a method is registered."""


def add_facade(server: grpc.aio.Server, handlers: Mapping[str, Handler], *, max_body_bytes: int) -> None:
    """Serves every bound method of the facade; `handlers` has the typed ones, by names such as "glimpse.v1.X.GetY".

    A body of more than `max_body_bytes` is refused.
    """
    for service in openai_pb2.DESCRIPTOR.services_by_name.values():
        methods = {
            binding.facade.name: _method_handler(binding, handlers, max_body_bytes) for binding in bindings(service)
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, methods),))


def _method_handler(
    binding: Binding, handlers: Mapping[str, Handler], max_body_bytes: int
) -> "grpc.RpcMethodHandler[Any, Any]":
    method = binding.facade
    endpoint = _Endpoint(binding, handlers, max_body_bytes)
    return _REGISTER[method.client_streaming, method.server_streaming](
        endpoint.write_answer if method.server_streaming else endpoint.return_answer,
        request_deserializer=GetMessageClass(method.input_type).FromString,
        response_serializer=HttpBody.SerializeToString,
    )


class _Endpoint:
    """One facade method."""

    def __init__(self, binding: Binding, handlers: Mapping[str, Handler], max_body_bytes: int) -> None:
        self._binding = binding
        self._unary = cast(UnaryHandler, handlers[binding.unary.full_name])
        self._stream = None if binding.stream is None else cast(StreamHandler, handlers[binding.stream.full_name])
        self._max_body_bytes = max_body_bytes

    async def return_answer(self, incoming: Any, context: Context) -> HttpBody:
        """Serves a method that returns one body."""
        question = None
        try:
            question = await self._read(incoming)
            document = encode(await self._unary(question.message, context))
        except Exception as error:  # every kind has its place in the table
            await abort(context, self._failure(error, question))
        await send_headers(context, _unknown_fields(question))
        return HttpBody(content_type=_JSON, data=document)

    async def write_answer(self, incoming: Any, context: Context) -> None:
        """Serves a method that returns a stream of bodies, of which a document is one and each event is one."""
        outlet, question = _Outlet(context), None
        try:
            question = await self._read(incoming)
            outlet.headers = _unknown_fields(question)
            if question.streaming and self._stream is not None:
                await self._write_events(self._stream, question, outlet)
            else:
                await outlet.write(_JSON, encode(await self._unary(question.message, context)))
        except Exception as error:  # every kind has its place in the table
            failure = self._failure(error, question)
            if outlet.has_begun:
                # HTTP/1.1 loses a status that comes after the first body: said in band, too, or nobody learns of it.
                await outlet.write(_EVENTS, _event(error_object(failure)))
            await abort(context, failure)

    async def _write_events(self, stream: StreamHandler, question: Question, outlet: "_Outlet") -> None:
        async with aclosing(stream(question.message, outlet.context)) as pieces:
            async for piece in pieces:
                await outlet.write(_EVENTS, _event(encode(piece)))
        if self._binding.stream_end is not None:
            await outlet.write(_EVENTS, _event(self._binding.stream_end.encode()))

    def _failure(self, error: Exception, question: Question | None) -> RpcFailure:
        return in_json_terms(error, self._binding.unary.input_type, {} if question is None else question.aliased)

    async def _read(self, incoming: Any) -> Question:
        method = self._binding.facade
        if method.input_type.full_name != descriptor_of(HttpBody).full_name:
            return Question(message=incoming, unknown=[], streaming=False)
        parts = incoming if method.client_streaming else _only(incoming)
        body = await collect(parts, max_bytes=self._max_body_bytes)
        request_class = GetMessageClass(self._binding.unary.input_type)
        return read_question(body, request_class, stream_member=self._binding.stream_member)


class _Outlet:
    """Where the bodies of one answer are written; the headers go out with the first."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.headers: tuple[tuple[str, str], ...] = ()
        self.has_begun = False

    async def write(self, content_type: str, data: bytes) -> None:
        if not self.has_begun:
            await send_headers(self.context, self.headers)
            self.has_begun = True
        await self.context.write(HttpBody(content_type=content_type, data=data))


async def _only(body: HttpBody) -> AsyncIterator[HttpBody]:
    yield body


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def _unknown_fields(question: Question) -> tuple[tuple[str, str], ...]:
    if not question.unknown:
        return ()
    paths = ",".join(question.unknown[:MAX_UNKNOWN_FIELDS_CHARACTERS])
    if len(paths) > MAX_UNKNOWN_FIELDS_CHARACTERS:
        paths = paths[:MAX_UNKNOWN_FIELDS_CHARACTERS].rpartition(",")[0] + ",..."
    return ((UNKNOWN_FIELDS_HEADER, paths),)
