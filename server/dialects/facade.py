"""Serves a REST API in a dialect: JSON in and out, with the typed handlers behind it.

Generic over dialects and endpoints: each endpoint is a method of the dialect's service, bound to typed methods. A
request body is collected and decoded, or read as a form while it arrives; the response is one document, a stream of
server-sent events, or a file. The handlers enforce deadlines.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import grpc
import grpc.aio
import msgspec
from google.api.httpbody_pb2 import HttpBody
from google.protobuf.descriptor import Descriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError as MessageError
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from glimpse.dialect.bindings import Binding, bindings
from glimpse.media.errors import MediaError
from glimpse.server.call.context import CallContext
from glimpse.server.call.deadline import within
from glimpse.server.call.offload import MAX_INLINE_BYTES, run_sized
from glimpse.server.codec.codec import Codec, Decoded
from glimpse.server.codec.document import DecodeError
from glimpse.server.codec.parameters import ignored_parameters
from glimpse.server.codec.paths import json_path, source_path, with_sent_names
from glimpse.server.dialects.forms import FormRequests
from glimpse.server.errors import InvalidRequest
from glimpse.server.rpc.context import Rpc, metadata_value
from glimpse.server.rpc.errors import abort, to_status
from glimpse.server.rpc.failure import ErrorDocument, FailedRpcError, RpcFailure
from glimpse.server.rpc.http_bodies import collect, encoded_body
from glimpse.server.rpc.json_messages import serialize
from glimpse.server.rpc.request_size import check_json_size
from glimpse.server.rpc.text_chunks import JsonChunks, TextChunk
from glimpse.server.rpc.typed_handlers import (
    METHOD_HANDLERS,
    Handler,
    StreamHandler,
    UnaryHandler,
    register_methods,
)
from glimpse.streams import Receiver, Stream

_JSON = "application/json"
_EVENTS = "text/event-stream"
_FILE = "application/octet-stream"
_FILE_HEADERS = (("content-disposition", "attachment"), ("x-content-type-options", "nosniff"))
"""Clients chose the bytes of files: no browser may take them for a page."""
_BEFORE_TYPE = len(b'{"type":"')
_COMMENT = b": ping\n\n"
"""Clients of event streams skip what begins with a colon: https://html.spec.whatwg.org/multipage/server-sent-events.html"""


def event(document: bytes, *, named: bool) -> bytes:
    """Returns the event of a stream that carries a document; a named one has the name of the document's type."""
    name = document[_BEFORE_TYPE : document.index(b'"', _BEFORE_TYPE)] if named else b""
    return (b"event: " + name + b"\ndata: " if named else b"data: ") + document + b"\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestDialect:
    """How REST clients speak: the one value that another dialect adds."""

    service: ServiceDescriptor
    """The facade, whose methods are bound to typed ones."""
    codec: Codec
    """Codec of the dialect's documents."""
    error: ErrorDocument
    """A failure → its document."""
    error_event: Callable[[RpcFailure, int], Mapping[str, Any]]
    """A failure, and the number of events before it → the document of its event, where events are named."""
    features_header: str | None = None
    """A request header that lists features to turn on. None of them has an effect, which the client is told."""

    def failure(self, error: Exception, sent_path: Callable[[str], str], request_id: str) -> RpcFailure:
        """Describes an error to a client who knows JSON names only.

        Args:
            sent_path: proto path of a field → where it stands in the client's document.
        """
        if isinstance(error, DecodeError):
            failure = to_status(InvalidRequest(error.path or "", error.message, error.code), request_id)
            return replace(failure, field=error.path)
        failure = to_status(error, request_id)
        if failure.field is None:
            return failure
        path = sent_path(failure.field)
        message = failure.message.replace(f"'{failure.field}'", f"'{path}'")
        return replace(failure, field=path or None, message=message)

    def path(self, request_type: Descriptor, proto_path: str, aliased: Mapping[str, str]) -> str:
        """Returns where a field of the typed request stands in the client's document."""
        return with_sent_names(json_path(self.codec.dialect, request_type, proto_path), aliased)


def add_facade(
    server: grpc.aio.Server,
    dialect: RestDialect,
    handlers: Mapping[str, Handler],
    *,
    max_body_bytes: int,
    ping_seconds: float,
) -> "Mapping[str, Endpoint]":
    """Serves every bound method of a dialect's facade, and returns what serves each, by its full name.

    Args:
        handlers: the typed handlers, by full names of methods, such as "glimpse.v1.ModelService.GetModel".
        ping_seconds: silence of a stream after which it is shown to be alive, to clients and what is between.
    """
    endpoints = {
        each.facade: Endpoint(dialect, each, handlers, max_body_bytes, ping_seconds)
        for each in bindings(dialect.service)
    }
    methods = {method.name: _method_handler(method, endpoint) for method, endpoint in endpoints.items()}
    register_methods(server, dialect.service.full_name, methods)
    return {method.full_name: endpoint for method, endpoint in endpoints.items()}


def _method_handler(method: MethodDescriptor, endpoint: "Endpoint") -> "grpc.RpcMethodHandler[Any, Any]":
    return METHOD_HANDLERS[method.client_streaming, method.server_streaming](
        endpoint.stream_response if method.server_streaming else endpoint.return_response,
        # gRPC would end a unary call whose message cannot be parsed as an error of the server.
        request_deserializer=GetMessageClass(method.input_type).FromString if method.client_streaming else None,
        response_serializer=serialize,
    )


class Endpoint:
    """One facade method."""

    def __init__(
        self,
        dialect: RestDialect,
        binding: Binding,
        handlers: Mapping[str, Handler],
        max_body_bytes: int,
        ping_seconds: float,
    ) -> None:
        self._dialect = dialect
        self._codec = dialect.codec
        self._binding = binding
        self._handler = handlers[binding.unary.full_name]
        self._stream = None if binding.stream is None else cast(StreamHandler, handlers[binding.stream.full_name])
        self._max_body_bytes = max_body_bytes
        self._ping = _ping(binding, dialect.codec)
        self._ping_seconds = ping_seconds

    async def return_response(self, incoming: Any, rpc: Rpc) -> HttpBody:
        """Serves a method that returns one body."""
        request = None
        try:
            async with rpc.stop.guard():
                request = await self._read(incoming, rpc)
                document = await self._encode(await self._answer(request, rpc.call), rpc.call)
            ignored = self._ignored(request, rpc)
            await rpc.send_headers(ignored, sent_path=partial(self._sent_path, request, rpc.call))
        except Exception as error:  # `to_status` maps every exception
            await abort(rpc, self._failure(error, request, rpc.call))
        return HttpBody(content_type=_JSON, data=document)

    async def stream_response(self, incoming: Any, rpc: Rpc) -> None:
        """Serves a method that returns a stream of bodies: one document, or one body for each event."""
        writer, request = _ResponseWriter(rpc), None
        try:
            async with rpc.stop.guard():
                request = await self._read(incoming, rpc)
                ignored = self._ignored(request, rpc)
                writer.send_headers = partial(
                    rpc.send_headers, ignored, sent_path=partial(self._sent_path, request, rpc.call)
                )
                if self._binding.content is not None:
                    await self._write_file(self._binding.content, request, writer)
                elif request.streaming and self._stream is not None:
                    await self._write_events(self._stream, request, writer)
                else:
                    await writer.write(_JSON, await self._encode(await self._answer(request, rpc.call), rpc.call))
        except Exception as error:  # `to_status` maps every exception
            failure = self._failure(error, request, rpc.call)
            if rpc.headers_sent and rpc.stop.can_write and self._binding.content is None:
                # HTTP/1.1 loses a status that follows a body, so that the client needs the error as an event too.
                await rpc.context.write(HttpBody(content_type=_EVENTS, data=self._error_event(failure, error)))
            await abort(rpc, failure)

    async def answer(self, body: bytes, call: CallContext) -> tuple[RpcFailure | None, bytes]:
        """Answers a request that came in no RPC of its own.

        Returns why it failed, None if it did not, and the document of the answer or of the failure.
        """
        request = None
        try:
            call.is_json = call.is_dialect = True
            call.body.reserve(len(body))
            request = await self._parse([body], call)
            return None, await self._encode(await self._answer(request, call), call)
        except Exception as error:  # `to_status` maps every exception
            failure = self._failure(error, request, call)
            return failure, msgspec.json.encode(self._dialect.error(failure))

    async def _answer(self, request: "_Request", call: CallContext) -> Message:
        try:
            return await cast(UnaryHandler, self._handler)(request.take(), call)
        except (InvalidRequest, MediaError, DecodeError):
            if request.form is not None:
                await request.form.drain(2 * self._max_body_bytes)
            raise

    async def _write_file(self, field: str, request: "_Request", writer: "_ResponseWriter") -> None:
        """Writes the bytes of a field of the responses as the body."""
        writer.send_headers = partial(writer.send_headers, more=_FILE_HEADERS)
        handler = cast(StreamHandler, self._handler)
        async with aclosing(cast("AsyncGenerator[Message, None]", handler(request.take(), writer.rpc.call))) as parts:
            async for part in parts:
                if data := getattr(part, field):
                    await writer.write(_FILE, data)

    async def _write_events(self, stream: StreamHandler, request: "_Request", writer: "_ResponseWriter") -> None:
        documents, call, named = JsonChunks(self._codec.encode), writer.rpc.call, self._binding.names_events
        alive = writer.pinging(self._ping, self._ping_seconds)
        async with alive, aclosing(stream(request.take(), call)) as chunks:
            if isinstance(chunks, Stream):
                chunks.receiver = writer.receiver(_EVENTS, lambda chunk: event(documents.encode(chunk), named=named))
            async for chunk in chunks:
                if isinstance(chunk, TextChunk):
                    document = documents.encode(chunk)
                else:
                    document = await self._encode(chunk, call)
                await writer.write(_EVENTS, event(document, named=named))
            if self._binding.stream_end is not None:
                await writer.write(_EVENTS, event(self._binding.stream_end.encode(), named=False))

    def _error_event(self, failure: RpcFailure, error: Exception) -> bytes:
        if not self._binding.names_events:
            return event(msgspec.json.encode(self._dialect.error(failure)), named=False)
        number = error.num_events if isinstance(error, FailedRpcError) else 0
        return event(msgspec.json.encode(self._dialect.error_event(failure, number)), named=True)

    def _sent_path(self, request: "_Request | None", call: CallContext, proto_path: str) -> str:
        """Returns where a field that the handlers see stands in the client's document."""
        aliased = {} if request is None else request.aliased
        path = source_path(proto_path, call.adapted)
        return self._dialect.path(self._binding.unary.input_type, path, aliased)

    def _ignored(self, request: "_Request", rpc: Rpc) -> list[str]:
        """Returns what the request asks for without effect, beside the fields of the call."""
        header = self._dialect.features_header
        features = "" if header is None else metadata_value(rpc.context, header) or ""
        listed = (f"{header}:{each.strip()}" for each in features.split(",") if each.strip())
        return [*request.ignored, *request.parameters, *listed]

    def _failure(self, error: Exception, request: "_Request | None", call: CallContext) -> RpcFailure:
        return self._dialect.failure(error, partial(self._sent_path, request, call), call.request_id)

    async def _read(self, incoming: Any, rpc: Rpc) -> "_Request":
        rpc.call.is_json = rpc.call.is_dialect = True
        parameters = ignored_parameters(self._binding.facade, rpc.url)
        async with within(rpc.call.deadline):
            request = await self._read_message(incoming, rpc.call)
        request.parameters = parameters
        return request

    async def _read_message(self, incoming: Any, call: CallContext) -> "_Request":
        method = self._binding.facade
        if not method.client_streaming:
            return _Request(_from_url(method, incoming))
        if self._binding.form is not None:
            await call.ticket.begin()
            form = FormRequests(self._binding.form, self._binding.unary.input_type, self._codec, incoming, call)
            return _Request(form.requests(), ignored=form.ignored, aliased=form.aliased, form=form)
        return await self._parse(await collect(incoming, call.body, max_bytes=self._max_body_bytes), call)

    async def _parse(self, pieces: list[bytes], call: CallContext) -> "_Request":
        await call.ticket.begin()
        request_class = GetMessageClass(self._binding.unary.input_type)
        found = await call.parse(self._decode, pieces, request_class)
        return _Request(found.message, ignored=found.ignored, streaming=found.streaming, aliased=found.aliased)

    def _decode(self, pieces: list[bytes], request_class: type[Message]) -> Decoded[Message]:
        body = b"".join(pieces)
        pieces.clear()  # frees them: the caller keeps the list
        check_json_size(body)
        return self._codec.decode(body, request_class, stream_member=self._binding.stream_member)

    async def _encode(self, response: Message, call: CallContext) -> bytes:
        # What was read of stored responses counts as body. A message serializes itself to tell its size.
        num_bytes = call.body.num_bytes if call.body.num_bytes > MAX_INLINE_BYTES else response.ByteSize()
        return await run_sized(call.client, num_bytes, self._codec.encode, response)


class _Request:
    """A decoded request. Its message is taken, so that it is freed once it is parsed: it has the media's bytes."""

    def __init__(
        self,
        message: Message | AsyncGenerator[Message],
        *,
        ignored: Sequence[str] = (),
        streaming: bool = False,
        aliased: Mapping[str, str] | None = None,
        form: FormRequests | None = None,
    ) -> None:
        """`message`: of a form, its messages, made while they are taken. The rest: see `Decoded`."""
        self.ignored = ignored
        self.parameters: Sequence[str] = ()
        """What of the URL has no effect."""
        self.streaming = streaming
        self.aliased = {} if aliased is None else aliased
        self.form = form
        self._message = [message]

    def take(self) -> Message | AsyncGenerator[Message]:
        """Returns the message, or the messages of a form, and forgets it."""
        return self._message.pop()


class _ResponseWriter:
    """Writes the bodies of one response. The headers are sent with the first body."""

    def __init__(self, rpc: Rpc) -> None:
        self.rpc = rpc
        self.send_headers: Callable[..., Awaitable[None]] = rpc.send_headers
        self._written_at = time.monotonic()

    async def write(self, content_type: str, data: bytes) -> None:
        if not self.rpc.headers_sent:
            await self.send_headers()
        await self.rpc.write(encoded_body(content_type, data))
        self._written_at = time.monotonic()

    def receiver(self, content_type: str, encode: Callable[[Any], bytes]) -> Receiver[Any]:
        """Returns what writes values as bodies, after the first body."""

        def body(value: Any) -> bytes:
            self._written_at = time.monotonic()
            return encoded_body(content_type, encode(value))

        return self.rpc.receiver(body)

    @asynccontextmanager
    async def pinging(self, ping: bytes, seconds: float) -> AsyncGenerator[None]:
        """Writes a ping after each silence of so many seconds; none begins after the block."""
        task = asyncio.create_task(self._ping(ping, seconds))
        try:
            yield
        finally:
            task.cancel()

    async def _ping(self, ping: bytes, seconds: float) -> None:
        with suppress(Exception):  # what keeps a ping from being written ends the RPC too, and is told there
            while True:
                silent_seconds = time.monotonic() - self._written_at
                if silent_seconds >= seconds:
                    await self.write(_EVENTS, ping)
                else:
                    await asyncio.sleep(seconds - silent_seconds)


def _ping(binding: Binding, codec: Codec) -> bytes:
    """Returns what shows clients that a stream is alive."""
    if binding.stream is None or binding.stream_ping is None:
        return _COMMENT
    message = GetMessageClass(binding.stream.output_type)()
    getattr(message, binding.stream_ping).SetInParent()
    return event(codec.encode(message), named=binding.names_events)


def _from_url(method: MethodDescriptor, data: bytes) -> Message:
    """Parses the request of a method without a body, which the gateway makes of the URL. Raises InvalidRequest."""
    try:
        return GetMessageClass(method.input_type).FromString(data)
    except MessageError as error:
        raise InvalidRequest("", "The URL: expected UTF-8 text after decoding its escapes, got other bytes") from error
