"""Tests for RPC spans, as OpenTelemetry's SDK records them: parents, attributes, and no request content."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from glimpse.server.call.context import CallContext
from glimpse.server.errors import ModelNotFoundError
from glimpse.server.rpc.interceptors import RpcInterceptor
from glimpse.server.rpc.load_meter import LoadMeter
from glimpse.server.rpc.typed_handlers import add_typed_services
from glimpse.server.telemetry import tracing
from glimpse.server.telemetry.metrics import Metrics
from glimpse.v1 import model_pb2
from tests.waiting import until

SERVICE = model_pb2.DESCRIPTOR.services_by_name["ModelService"]
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "a secret of the client's"


@dataclass(frozen=True, slots=True)
class Traced:
    """A server whose spans are recorded."""

    channel: grpc.aio.Channel
    exporter: InMemorySpanExporter

    async def ask(self, name: str, request: Any, *metadata: tuple[str, str]) -> grpc.StatusCode:
        method = f"/{SERVICE.full_name}/{name}"
        call = self.channel.unary_unary(method, request_serializer=type(request).SerializeToString)
        return await call(request, metadata=metadata).code()

    async def span(self) -> ReadableSpan:
        await until(self.exporter.get_finished_spans)  # the client may have its status before the server is done
        (span,) = self.exporter.get_finished_spans()
        return span


@pytest.fixture
async def traced(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Traced]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # The provider of a process can be set only once, so the test replaces it directly.
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)

    async def list_models(_request: Any, call: CallContext) -> model_pb2.ListModelsResponse:
        call.prompt_tokens, call.completion_tokens = 7, 3
        return model_pb2.ListModelsResponse()

    async def get_model(request: model_pb2.GetModelRequest, _call: CallContext) -> model_pb2.GetModelResponse:
        if request.model:
            raise ModelNotFoundError(request.model, ("nano",))
        raise RuntimeError(SECRET)

    server = grpc.aio.server(interceptors=[RpcInterceptor(Metrics(), LoadMeter(max_sequences=1))])
    handlers: Any = {f"{SERVICE.full_name}.{each.name}": get_model for each in SERVICE.methods}
    handlers[f"{SERVICE.full_name}.ListModels"] = list_models
    add_typed_services(server, [SERVICE], handlers)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Traced(channel, exporter)
    await server.stop(0)


async def test_rpc_span_is_a_child_of_the_callers_span(traced: Traced) -> None:
    parent = ("traceparent", f"00-{TRACE}-{PARENT}-01")
    assert (
        await traced.ask("ListModels", model_pb2.ListModelsRequest(), parent, ("x-request-id", "mine"))
        is grpc.StatusCode.OK
    )
    span = await traced.span()
    assert span.name == "glimpse.v1.ModelService/ListModels"
    assert span.context is not None
    assert span.parent is not None
    assert (format(span.context.trace_id, "032x"), format(span.parent.span_id, "016x")) == (TRACE, PARENT)
    assert span.attributes == {
        "rpc.system": "grpc",
        "rpc.service": "glimpse.v1.ModelService",
        "rpc.method": "ListModels",
        "rpc.grpc.status_code": 0,
        "glimpse.request_id": "mine",
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
    }
    assert span.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize(
    ("model", "code", "status"),
    [("other", grpc.StatusCode.NOT_FOUND, StatusCode.UNSET), ("", grpc.StatusCode.INTERNAL, StatusCode.ERROR)],
    ids=["the client's fault", "ours"],
)
async def test_span_of_a_failed_rpc_has_its_status_but_no_content(
    traced: Traced, model: str, code: grpc.StatusCode, status: StatusCode
) -> None:
    assert await traced.ask("GetModel", model_pb2.GetModelRequest(model=model)) is code
    span = await traced.span()
    assert span.parent is None
    assert (span.attributes or {})["rpc.grpc.status_code"] == code.value[0]
    assert span.status.status_code is status
    assert not span.events
    assert SECRET not in span.to_json()


def test_trace_id_is_the_callers_without_the_sdk() -> None:
    span = tracing.begin_span("/x.Y/Z", [("traceparent", f"00-{TRACE}-{PARENT}-01"), ("a-bin", b"")])
    assert not span.is_recording()
    assert tracing.trace_id_of(span) == TRACE
    assert tracing.trace_id_of(tracing.begin_span("/x.Y/Z", [])) is None
