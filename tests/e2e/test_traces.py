"""One trace from the gateway to the stages of a request, as a collector receives it over OTLP, and the access log."""

import asyncio
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from glimpse.gateway.address import Address
from tests.e2e.media_host import HOST, MediaHost, serving_media
from tests.e2e.stack import Served, free_ports
from tests.server.requests import png
from tests.server.serving import served
from tests.waiting import eventually

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SERVER, CLIENT = Span.SpanKind.SPAN_KIND_SERVER, Span.SpanKind.SPAN_KIND_CLIENT
CHAT = "/v1/chat/completions"
STAGES = {"fetch", "decode_media", "queue", "encode", "prefill", "decode"}

EXPORTING = """
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
provider = TracerProvider(resource=Resource.create({{"service.name": "glimpse"}}))
provider.add_span_processor(BatchSpanProcessor(
    OTLPSpanExporter(endpoint="{endpoint}", insecure=True), schedule_delay_millis=100))
trace.set_tracer_provider(provider)
"""
"""What `opentelemetry-instrument` does for the server: the SDK, with an exporter to a collector."""


@dataclass(slots=True)
class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """An OpenTelemetry collector that keeps spans, each with the name of its service."""

    spans: list[tuple[str, Span]] = field(default_factory=list[tuple[str, Span]])
    lock: threading.Lock = field(default_factory=threading.Lock)

    def Export(self, request: trace_service_pb2.ExportTraceServiceRequest, context: object) -> Any:  # noqa: N802
        with self.lock:
            for resource in request.resource_spans:
                service = attributes(resource.resource.attributes)["service.name"]
                self.spans += [(service, span) for scope in resource.scope_spans for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    def of(self, trace: str) -> list[tuple[str, Span]]:
        with self.lock:
            return [(service, span) for service, span in self.spans if span.trace_id.hex() == trace]


def attributes(pairs: Any) -> dict[str, str]:
    values: list[KeyValue] = list(pairs)
    return {pair.key: pair.value.string_value for pair in values}


@pytest.fixture(scope="module")
def collector() -> Iterator[tuple[Collector, Address]]:
    server, collector = grpc.server(ThreadPoolExecutor(2)), Collector()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield collector, Address(host="127.0.0.1", port=port)
    server.stop(None)


@pytest.fixture(scope="module")
def media_host() -> Iterator[MediaHost]:
    with serving_media() as host:
        yield host


@pytest.fixture(scope="module")
def traced_server(
    tiny_checkpoint: Path,
    collector: tuple[Collector, Address],
    media_host: MediaHost,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Served]:
    flags = (f"--allowed-media-networks={HOST}/32", f"--allowed-media-ports={media_host.server_port}")
    names = ("--served-model-name=tiny", "--metrics-names=both")
    prelude = EXPORTING.format(endpoint=collector[1])
    with served(tiny_checkpoint, tmp_path_factory.mktemp("traced"), *flags, *names, prelude=prelude) as server:
        yield server


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """A running gateway."""

    url: str
    log: Path
    """Output of the gateway, the access log."""


@pytest.fixture(scope="module")
def gateway(
    traced_server: Served, collector: tuple[Collector, Address], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """Serves the server's metrics, sends its spans to the collector and logs requests."""
    (port,) = free_ports(1)
    flags = (f"--listen=127.0.0.1:{port}", f"--upstream=127.0.0.1:{traced_server.port}", "--allowed-host=pod.example")
    observed = (f"--metrics-upstream=127.0.0.1:{traced_server.metrics_port}", f"--otlp-endpoint={collector[1]}")
    command = [sys.executable, "-m", "glimpse.gateway", "run", "--drain-seconds=0", "--access-log", *flags, *observed]
    gateway = Gateway(url=f"http://127.0.0.1:{port}", log=tmp_path_factory.mktemp("gateway") / "gateway.log")
    with gateway.log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output)
    try:
        assert eventually(lambda: health_of(gateway.url) == 200), gateway.log.read_text()
        yield gateway
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)


@pytest.fixture
async def http(gateway: Gateway) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(gateway.url) as session:
        yield session


def health_of(url: str) -> int:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def body(url: str) -> dict[str, Any]:
    content = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": url}}]
    messages = [{"role": "user", "content": content}]
    return {"model": "tiny", "messages": messages, "max_completion_tokens": 8, "return_timings": True}


async def test_spans_of_gateway_and_stages_share_the_caller_s_trace(
    http: aiohttp.ClientSession, collector: tuple[Collector, Address], media_host: MediaHost
) -> None:
    headers = {"traceparent": f"00-{TRACE}-{CALLER}-01", "x-request-id": "mine"}
    url = media_host.put("/traced.png", png(80, 60, (9, 8, 7)))
    async with http.post(CHAT, json=body(url), headers=headers) as answer:
        assert answer.status == 200
        timings = (await answer.json())["usage"]["timings"]
    spans, wanted = collector[0], {"glimpse-gateway", *STAGES}

    def names() -> set[str]:
        return {service for service, _ in spans.of(TRACE)} | {span.name for _, span in spans.of(TRACE)}

    assert await asyncio.to_thread(eventually, lambda: wanted <= names()), names()
    assert await asyncio.to_thread(eventually, lambda: len(spans.of(TRACE)) == 3 + len(STAGES))
    by_id = {span.span_id.hex(): (service, span) for service, span in spans.of(TRACE)}
    stages = {span.name: span for _, span in by_id.values() if span.name in STAGES}
    rpcs = {span.parent_span_id.hex() for span in stages.values()}
    assert len(rpcs) == 1
    path: list[tuple[str, int]] = []
    parent = rpcs.pop()
    while parent in by_id:
        service, span = by_id[parent]
        path.append((service, span.kind))
        parent = span.parent_span_id.hex()
    # The server's RPC, the gateway's request to it, the client's request to the gateway, the client.
    assert path == [("glimpse", SERVER), ("glimpse-gateway", CLIENT), ("glimpse-gateway", SERVER)]
    assert parent == CALLER
    order = sorted(stages.values(), key=lambda span: (span.start_time_unix_nano, -span.end_time_unix_nano))
    assert [span.name for span in order] == ["fetch", "decode_media", "queue", "prefill", "encode", "decode"]
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in order)
    assert stages["queue"].end_time_unix_nano == stages["prefill"].start_time_unix_nano
    assert "What is it" not in str(spans.of(TRACE))
    check_timings(timings, stages)


def check_timings(timings: dict[str, Any], stages: dict[str, Span]) -> None:
    """Compares what an answer tells of its stages with their spans, of which only encode's is within another one."""
    told = timings["first_token_stages"]
    spent = {name: (span.end_time_unix_nano - span.start_time_unix_nano) / 1e6 for name, span in stages.items()}
    spent["prefill"] -= spent["encode"]
    assert timings["decode_milliseconds"] == pytest.approx(spent.pop("decode"), abs=0.01)
    assert told.pop("preparation_milliseconds") >= 0
    assert told == pytest.approx({f"{name}_milliseconds": each for name, each in spent.items()}, abs=0.01)


@pytest.mark.parametrize("stream", [False, True])
async def test_access_log_has_tokens_and_the_trace(gateway: Gateway, http: aiohttp.ClientSession, stream: bool) -> None:
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_completion_tokens": 5}
    trace = f"{TRACE[:-1]}{int(stream)}"
    headers = {"traceparent": f"00-{trace}-{CALLER}-01"}
    async with http.post(CHAT, json={**asked, "stream": stream}, headers=headers) as answer:
        assert answer.status == 200
        await answer.read()

    def lines() -> list[str]:
        return [line for line in gateway.log.read_text().splitlines() if CHAT in line and f"trace_id={trace}" in line]

    assert await asyncio.to_thread(eventually, lambda: bool(lines()))
    (line,) = lines()
    fields = dict(field.split("=", 1) for field in line.split() if "=" in field)
    assert int(fields["prompt_tokens"]) > 0
    assert fields["completion_tokens"] == "5"


async def test_gateway_of_one_server_serves_its_metrics(http: aiohttp.ClientSession) -> None:
    async with http.get("/metrics", headers={"host": "pod.example:8080"}) as answer:
        text = await answer.text()
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/plain")
    assert "vllm:num_requests_waiting{" in text
    assert "glimpse_engine_ready 1.0" in text
    async with http.post("/metrics") as answer:
        assert (answer.status, answer.headers["allow"]) == (405, "GET")
