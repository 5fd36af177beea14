"""A span for each call, as OpenTelemetry's API takes them; without its SDK in the process nothing becomes of them.

Names are its semantic conventions' for RPC and generative AI. No span has anything of what was said.
"""

from collections.abc import Iterable

import grpc
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from glimpse.server.rpc.context import Call

_PROPAGATOR = TraceContextTextMapPropagator()
_FAILURES = ("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS")
"""Statuses that are a server's failure rather than a client's."""


def begin_span(method: str, metadata: Iterable[tuple[str, str | bytes]]) -> Span:
    """The span of a call, below the caller's if that told of one (`traceparent`).

    Args:
        method: such as "/glimpse.v1.ChatService/CreateChatCompletion".
        metadata: the caller's.
    """
    caller = _PROPAGATOR.extract({key: value for key, value in metadata if isinstance(value, str)})
    service, _, name = method.strip("/").rpartition("/")
    return trace.get_tracer("glimpse").start_span(
        f"{service}/{name}",
        context=caller,
        kind=SpanKind.SERVER,
        attributes={"rpc.system": "grpc", "rpc.service": service, "rpc.method": name},
    )


def trace_id_of(span: Span) -> str | None:
    """The trace's id in hex, also where no SDK makes spans and the caller told of one."""
    context = span.get_span_context()
    return format(context.trace_id, "032x") if context.is_valid else None


def end_span(span: Span, call: Call, code: str) -> None:
    """Ends it with what became of the call: the name of its status, and its tokens."""
    number, _ = grpc.StatusCode[code].value
    span.set_attribute("rpc.grpc.status_code", number)
    span.set_attribute("glimpse.request_id", call.request_id)
    if call.prompt_tokens is not None:
        span.set_attribute("gen_ai.usage.input_tokens", call.prompt_tokens)
    if call.completion_tokens is not None:
        span.set_attribute("gen_ai.usage.output_tokens", call.completion_tokens)
    if code in _FAILURES:
        span.set_status(StatusCode.ERROR)
    span.end()
