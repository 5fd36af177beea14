"""Creates an OpenTelemetry span for each RPC; without the SDK in the process, spans are not recorded.

Names follow the semantic conventions for RPC and generative AI. Spans contain no request content.
"""

from collections.abc import Iterable

import grpc
from opentelemetry import context, trace
from opentelemetry.trace import Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_PROPAGATOR = TraceContextTextMapPropagator()
_FAILURES = ("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "ABORTED", "DATA_LOSS")
"""Statuses that mean a server error."""


def begin_span(method: str, metadata: Iterable[tuple[str, str | bytes]]) -> Span:
    """Begins the span of an RPC, as a child of the caller's span if the metadata has a `traceparent`.

    Args:
        method: Such as "/glimpse.v1.ChatService/CreateChatCompletion".
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
    """Returns the trace id in hex. Without the SDK it is the caller's, if the caller sent one."""
    own = span.get_span_context()
    return format(own.trace_id, "032x") if own.is_valid else None


def make_current(span: Span) -> None:
    """Makes the span the parent of those that this task begins, and the tasks that it starts. It serves one RPC."""
    if span.is_recording():
        context.attach(trace.set_span_in_context(span))


def end_span(
    span: Span, code: str, *, request_id: str, prompt_tokens: int | None, completion_tokens: int | None
) -> None:
    """Ends the span with the RPC's token usage, None if it has none, and `code`, the name of its status."""
    number, _ = grpc.StatusCode[code].value
    span.set_attribute("rpc.grpc.status_code", number)
    span.set_attribute("glimpse.request_id", request_id)
    if prompt_tokens is not None:
        span.set_attribute("gen_ai.usage.input_tokens", prompt_tokens)
    if completion_tokens is not None:
        span.set_attribute("gen_ai.usage.output_tokens", completion_tokens)
    if code in _FAILURES:
        span.set_status(StatusCode.ERROR)
    span.end()
