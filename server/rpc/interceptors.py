"""Observes every RPC: context, metrics, traces, load reports and the access log, none with request content.

Requests begin in their client's turn. Those that are cancelled before end unseen.
"""

import asyncio
import inspect
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeAlias

import grpc
import grpc.aio
import structlog
from opentelemetry.trace import INVALID_SPAN, Span

from glimpse.identity.access import Access, Identity
from glimpse.identity.errors import AccessError, QuotaExceededError
from glimpse.identity.tenant import Tenant
from glimpse.media.cache.fair_share import FairCapacity
from glimpse.server.call.admission import Admission
from glimpse.server.call.body_budget import BodyReservation
from glimpse.server.call.context import CallContext
from glimpse.server.errors import ServerStoppingError
from glimpse.server.rpc.client_identity import ClientIdentifier
from glimpse.server.rpc.context import CODEC_HEADER, GRACE_HEADER, KEY_HEADER, Rpc, deadline, metadata_value, request_id
from glimpse.server.rpc.errors import abort, to_status
from glimpse.server.rpc.failure import ErrorDocument
from glimpse.server.rpc.http_bodies import discard
from glimpse.server.rpc.load_meter import REPORT_TRAILER, LoadMeter
from glimpse.server.rpc.stopping import OpenRpcs, StopSwitch, UnreadResponseError
from glimpse.server.rpc.typed_handlers import METHOD_HANDLERS
from glimpse.server.telemetry.metrics import Metrics
from glimpse.server.telemetry.tracing import begin_span, end_span, make_current, trace_id_of

Context = grpc.aio.ServicerContext[Any, Any]
MethodHandler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"

_INFRASTRUCTURE = ("/grpc.", "/glimpse.v1.LoadService/", "/xds.")
"""Health, reflection and load reports. Logged at level debug, not traced, counted neither as load nor in the metrics,
and no drain waits for them: they are called constantly or stream without end."""

_LIBRARY = "/grpc."
"""Health and reflection. gRPC's library serves them, with its own context instead of an `Rpc`."""

_FREE = ("/ListModels", "/GetModel")
"""Methods that do no work. Like the infrastructure, they count against no quota."""

_log = structlog.get_logger("access")


class RpcInterceptor(grpc.aio.ServerInterceptor):
    """Observes RPCs, and ends those that are open with a status when the server stops."""

    def __init__(
        self,
        metrics: Metrics,
        load: LoadMeter,
        *,
        access: Access | None = None,
        clients: ClientIdentifier | None = None,
        admission: Admission | None = None,
        bodies: FairCapacity | None = None,
        error_documents: Mapping[str, ErrorDocument] | None = None,
    ) -> None:
        """Without `access` everyone may call; without `admission` every request is admitted at once; without `bodies`
        they may take all memory. `error_documents` are those of the dialects, by the full names of their services."""
        self._access = access or Access()
        self._clients = clients or ClientIdentifier()
        self._admission = admission or Admission()
        self._bodies = bodies or FairCapacity()
        self._error_documents = error_documents or {}
        self._metrics = metrics
        self._load = load
        self.open_rpcs = OpenRpcs()
        self._num_running = 0

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[MethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> MethodHandler:
        handler = await continuation(handler_call_details)
        return handler and self._observed(handler, handler_call_details.method)

    def _observed(self, handler: Any, method: str) -> MethodHandler:
        behavior = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        takes_rpc = not method.startswith(_LIBRARY)

        async def unary(request: Any, context: Context) -> Any:
            rpc = self._begin(method, context)
            await rpc.call.ticket.arrive()
            try:
                async with self._observe(method, rpc):
                    async with _until_stopped(rpc, request):
                        response = await behavior(request, rpc if takes_rpc else context)
                    self._set_trailers(rpc)
                    return response
            except grpc.aio.AbortError as error:
                _break_cycles(error)
                raise
            finally:
                del request, context, rpc

        async def stream(request: Any, context: Context) -> AsyncIterator[Any]:
            rpc = self._begin(method, context)
            await rpc.call.ticket.arrive()
            try:
                async with self._observe(method, rpc):
                    responses = behavior(request, rpc if takes_rpc else context)
                    async with _until_stopped(rpc, request), aclosing(responses):
                        async for response in responses:
                            yield response
                    self._set_trailers(rpc)
            except grpc.aio.AbortError as error:
                _break_cycles(error)
                raise
            finally:
                del request, context, rpc

        return METHOD_HANDLERS[handler.request_streaming, handler.response_streaming](
            stream if inspect.isasyncgenfunction(behavior) else unary,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _begin(self, method: str, context: Context) -> Rpc:
        """Returns the RPC and its call: whose it is, or why it is refused."""
        metadata, peer, refusal = context.invocation_metadata() or (), context.peer(), None
        try:
            identity = self._access.authenticate(method, metadata, peer, context.auth_context())
        except AccessError as error:
            identity, refusal = Identity(Tenant(), is_admin=False), error
        name = identity.tenant.name
        client = self._clients.of_tenant(name) if name else self._clients.identify(metadata, peer)
        ends = deadline(context.time_remaining(), metadata_value(context, GRACE_HEADER))
        codec = metadata_value(context, CODEC_HEADER)
        call = CallContext(
            request_id=request_id(context),
            routing_key=metadata_value(context, KEY_HEADER) or "",
            deadline=ends,
            client=client,
            tenant=identity.tenant,
            is_admin=identity.is_admin,
            ticket=self._admission.ticket(method, client, ends),
            body=BodyReservation(self._bodies, client),
            is_json=codec in ("json", "http"),
        )
        error_document = self._error_documents.get(method.split("/")[1])
        return Rpc(
            context=context,
            call=call,
            refusal=refusal,
            codec=codec,
            error_document=error_document,
            stop=StopSwitch(peer),
        )

    @asynccontextmanager
    async def _observe(self, method: str, rpc: Rpc) -> AsyncGenerator[None]:
        call, context = rpc.call, rpc.context
        began = time.monotonic()
        counted = not method.startswith(_INFRASTRUCTURE)
        span = begin_span(method, context.invocation_metadata() or ()) if counted else INVALID_SPAN
        make_current(span)
        structlog.contextvars.bind_contextvars(request_id=call.request_id, **_trace(span), **_tenant(call))
        if counted:
            self._load.rpc_began()
        self._set_trailers(rpc)  # for RPCs that fail; successful ones update it at their end
        self._count(counted)
        self.open_rpcs.add(rpc.stop, is_request=counted)
        code = "OK"
        try:
            async with _counted(rpc, method):
                yield
        except BaseException as error:
            code = _code(error, context)
            raise
        finally:
            call.close()
            self._count(-counted)
            seconds = time.monotonic() - began
            if counted:
                self._metrics.rpc_ended(method, code, seconds)
                self._load.rpc_ended(code)
                end_span(
                    span,
                    code,
                    request_id=call.request_id,
                    prompt_tokens=call.prompt_tokens,
                    completion_tokens=call.completion_tokens,
                )
            log = _log.info if counted else _log.debug
            log(
                "rpc",
                method=method,
                code=code,
                reason=rpc.reason,
                milliseconds=round(seconds * 1000, 1),
                prompt_tokens=call.prompt_tokens,
                completion_tokens=call.completion_tokens,
            )

    def _set_trailers(self, rpc: Rpc) -> None:
        report = self._load.report().SerializeToString()
        rpc.context.set_trailing_metadata(((REPORT_TRAILER, report), *rpc.usage_trailers))

    def _count(self, change: int) -> None:
        self._num_running += change
        self._metrics.set_running_rpcs(self._num_running)


@asynccontextmanager
async def _counted(rpc: Rpc, method: str) -> AsyncGenerator[None]:
    """Counts the RPC and its tokens against the quotas of its tenant, or refuses it."""
    call = rpc.call
    if rpc.refusal is None and not method.startswith(_INFRASTRUCTURE) and not method.endswith(_FREE):
        try:
            await call.tenant.begin_request()
        except QuotaExceededError as error:
            rpc.refusal = error
        else:
            try:
                yield
            finally:
                call.tenant.end_request((call.prompt_tokens or 0) + (call.completion_tokens or 0))
            return
    yield


def _break_cycles(error: grpc.aio.AbortError) -> None:
    """Detaches what the error that ends an RPC refers to.

    gRPC keeps that error with the RPC's state, to which every frame leads that has the RPC's context: what the request
    had in memory would wait for the cycle collector.
    """
    error.__traceback__ = error.__context__ = error.__cause__ = None


@asynccontextmanager
async def _until_stopped(rpc: Rpc, request: Any) -> AsyncGenerator[None]:
    """Aborts an RPC that is refused, and one whose handler does not do it by itself when the server stops."""
    try:
        async with rpc.stop.guard():
            if rpc.refusal is not None:
                if rpc.url and isinstance(request, AsyncIterator):
                    await discard(request)
                raise rpc.refusal
            yield
    except (AccessError, ServerStoppingError, UnreadResponseError) as error:
        await abort(rpc, to_status(error, rpc.call.request_id))


def _trace(span: Span) -> dict[str, str]:
    trace_id = trace_id_of(span)
    return {} if trace_id is None else {"trace_id": trace_id}


def _tenant(call: CallContext) -> dict[str, str]:
    return {"tenant": call.tenant.name} if call.tenant.name else {}


def _code(error: BaseException, context: Context) -> str:
    match error:
        case asyncio.CancelledError() | GeneratorExit():
            # gRPC cancels an RPC whose deadline passes in the same way as one that the client cancels.
            return "DEADLINE_EXCEEDED" if context.time_remaining() == 0 else "CANCELLED"
        case _:
            return context.code().name if context.code() else "UNKNOWN"
