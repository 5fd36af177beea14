"""What surrounds every call: its record, metrics, and a line in the access log, with nothing of what was said."""

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import aclosing, contextmanager
from typing import Any, TypeAlias

import grpc
import grpc.aio
import structlog
from opentelemetry.trace import INVALID_SPAN, Span

from glimpse.server.rpc.context import begin_call
from glimpse.server.rpc.load_meter import REPORT_TRAILER, LoadMeter
from glimpse.server.rpc.metrics import Metrics
from glimpse.server.rpc.tracing import begin_span, end_span, trace_id_of

Context = grpc.aio.ServicerContext[Any, Any]
MethodHandler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"

_INFRASTRUCTURE = ("/grpc.", "/glimpse.v1.LoadService/", "/xds.")
"""Health, reflection and load: asked all the time, or for ever; they are logged at level debug and hold no drain up."""

_log = structlog.get_logger("access")


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Observes calls and knows when none is being served."""

    def __init__(self, metrics: Metrics, load: LoadMeter) -> None:
        self._metrics = metrics
        self._load = load
        self._num_running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def wait_until_idle(self) -> None:
        """Returns once no call but those of health, reflection and load is being served."""
        await self._idle.wait()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[MethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> MethodHandler:
        handler = await continuation(handler_call_details)
        return handler and self._observed(handler, handler_call_details.method)

    def _observed(self, handler: Any, method: str) -> MethodHandler:
        kind, register = _KINDS[handler.request_streaming, handler.response_streaming]
        behaviour = getattr(handler, kind)

        async def call(request: Any, context: Context) -> Any:
            with self._observe(method, context):
                response = await behaviour(request, context)
                self._tell_load(context)
                return response

        async def generate(request: Any, context: Context) -> AsyncIterator[Any]:
            with self._observe(method, context):
                async with aclosing(behaviour(request, context)) as responses:
                    async for response in responses:
                        yield response
                self._tell_load(context)

        return register(
            generate if inspect.isasyncgenfunction(behaviour) else call,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    @contextmanager
    def _observe(self, method: str, context: Context) -> Generator[None]:
        call = begin_call(context)
        began = time.monotonic()
        counted = not method.startswith(_INFRASTRUCTURE)
        span = begin_span(method, context.invocation_metadata() or ()) if counted else INVALID_SPAN
        structlog.contextvars.bind_contextvars(request_id=call.request_id, **_trace(span))
        if counted:
            self._load.call_began()
        self._tell_load(context)  # for a call that is refused; at the end of any other, how it is then
        self._count(counted)
        code = "OK"
        try:
            yield
        except BaseException as error:
            code = _code(error, context)
            raise
        finally:
            self._count(-counted)
            seconds = time.monotonic() - began
            self._metrics.call_ended(method, code, seconds)
            if counted:
                self._load.call_ended(code)
                end_span(span, call, code)
            log = _log.info if counted else _log.debug
            log(
                "call",
                method=method,
                code=code,
                milliseconds=round(seconds * 1000, 1),
                prompt_tokens=call.prompt_tokens,
                completion_tokens=call.completion_tokens,
            )

    def _tell_load(self, context: Context) -> None:
        context.set_trailing_metadata(((REPORT_TRAILER, self._load.report().SerializeToString()),))

    def _count(self, change: int) -> None:
        self._num_running += change
        self._metrics.calls_running(self._num_running)
        if self._num_running:
            self._idle.clear()
        else:
            self._idle.set()


def _trace(span: Span) -> dict[str, str]:
    trace_id = trace_id_of(span)
    return {} if trace_id is None else {"trace_id": trace_id}


def _code(error: BaseException, context: Context) -> str:
    match error:
        case asyncio.CancelledError() | GeneratorExit():
            # When a deadline passes, gRPC cancels the call like any other.
            return "DEADLINE_EXCEEDED" if context.time_remaining() == 0 else "CANCELLED"
        case _:
            return context.code().name if context.code() else "UNKNOWN"


_KINDS: dict[tuple[bool, bool], tuple[str, Callable[..., MethodHandler]]] = {
    (False, False): ("unary_unary", grpc.unary_unary_rpc_method_handler),
    (False, True): ("unary_stream", grpc.unary_stream_rpc_method_handler),
    (True, False): ("stream_unary", grpc.stream_unary_rpc_method_handler),
    (True, True): ("stream_stream", grpc.stream_stream_rpc_method_handler),
}
"""(requests stream, responses stream) → the handler's attribute, and how such a handler is made."""
