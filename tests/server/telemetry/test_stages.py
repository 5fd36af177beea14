"""Stages of a request as spans: their order, those that are cut short, and how many there are at most."""

from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from glimpse.engine.protocol.messages import NO_STATS, RequestStats
from glimpse.media.cache.request_media import MediaUsage
from glimpse.server.telemetry.metrics import Metrics
from glimpse.server.telemetry.stages import MAX_SPANS, RequestTimer, record_media_stages
from glimpse.server.telemetry.timings import FirstTokenTime, Timings


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Records the spans of a test, whose current span is that of an RPC."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    with trace.use_span(provider.get_tracer("test").start_span("rpc")):
        yield exporter


def spans(exporter: InMemorySpanExporter) -> list[tuple[str, int, bool]]:
    """Returns name, index of the completion, and whether it is an error, of each span."""
    return [(span.name, index_of(span), span.status.status_code is StatusCode.ERROR) for span in finished(exporter)]


def finished(exporter: InMemorySpanExporter) -> list[ReadableSpan]:
    return list(exporter.get_finished_spans())


def index_of(span: ReadableSpan) -> int:
    index = (span.attributes or {})["glimpse.completion.index"]
    assert isinstance(index, int)
    return index


def test_completions_that_are_aborted_have_a_span_of_what_they_were_in(exporter: InMemorySpanExporter) -> None:
    timer = RequestTimer(Metrics())
    timer.submit([5], num_completions=3)
    for index in (0, 1):
        timer.observe_tokens(index, 1, NO_STATS)
    timer.finish(0, "stop")
    exporter.clear()
    timer.abort("cancelled")
    timer.abort("cancelled")
    assert spans(exporter) == [("decode", 1, True), ("queue_and_prefill", 2, True)]


def test_encoding_is_within_prefill(exporter: InMemorySpanExporter) -> None:
    timer = RequestTimer(Metrics())
    timer.submit([5], num_completions=1)
    # The engine's clock may run a little ahead: no stage ends after the first token.
    timer.observe_tokens(0, 1, RequestStats(encode_seconds=1000.0))
    times = {span.name: (span.start_time or 0, span.end_time or 0) for span in finished(exporter)}
    assert times.keys() == {"queue", "prefill", "encode"}
    assert times["queue"][1] == times["prefill"][0] == times["encode"][0]
    assert times["encode"][1] == times["prefill"][1]


def test_stages_add_up_to_the_time_to_the_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 12.0, 15.0, 16.0, 20.0])  # begun, submitted, tokens of two completions, one of the first
    monkeypatch.setattr("glimpse.server.telemetry.stages.time.monotonic", lambda: next(times))
    timer = RequestTimer(Metrics())
    timer.submit([5], num_completions=2)
    waits = MediaUsage(fetch_waits=[(9.5, 10.5), (10.0, 11.0)], decode_waits=[(10.5, 11.5), (10.75, 11.25)])
    assert timer.timings(9.0, waits) is None
    timer.observe_tokens(1, 1, RequestStats(queue_seconds=0.5, encode_seconds=1.0))
    timer.observe_tokens(0, 1, RequestStats(queue_seconds=2.0))
    timer.observe_tokens(1, 1, NO_STATS)
    expected = FirstTokenTime(
        preparation_seconds=1.0,
        fetch_seconds=1.5,
        decode_media_seconds=0.5,
        queue_seconds=0.5,
        encode_seconds=1.0,
        prefill_seconds=1.5,
    )
    assert timer.timings(9.0, waits) == Timings(first_token=expected, decode_seconds=5.0)
    assert expected.seconds == 15.0 - 9.0


def test_request_has_a_bounded_number_of_spans(exporter: InMemorySpanExporter) -> None:
    timer = RequestTimer(Metrics())
    timer.submit([5], num_completions=MAX_SPANS + 1)
    for index in range(MAX_SPANS + 1):
        timer.observe_tokens(index, 1, NO_STATS)
        timer.finish(index, "stop")
    record_media_stages(MediaUsage(fetch_waits=[(0.0, 1.0)] * (MAX_SPANS + 1)))
    names = [span.name for span in finished(exporter)]
    assert {name: names.count(name) for name in names} == dict.fromkeys(
        ("queue", "prefill", "decode", "fetch"), MAX_SPANS
    )


def test_nothing_is_recorded_without_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "get_tracer", None)  # it is not even asked for
    timer = RequestTimer(Metrics())
    timer.submit([5], num_completions=1)
    timer.observe_tokens(0, 1, NO_STATS)
    timer.finish(0, "stop")
    record_media_stages(MediaUsage(decode_waits=[(0.0, 1.0)]))
