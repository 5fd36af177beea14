"""What Prometheus can read of this server. Knows the names and units of the metrics, and no client's data."""

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from glimpse.engine.ipc.client import EngineState
from glimpse.engine.protocol import StepStats
from glimpse.media.cache.request_media import MediaUsage

_CALL_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_FIRST_TOKEN_BUCKETS = (0.01, 0.02, 0.04, 0.08, 0.15, 0.25, 0.5, 0.75, 1, 2, 4, 8, 16, 32, 64)
_NEXT_TOKEN_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5)


class Metrics:
    """The server's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._add_call_metrics()
        self._add_engine_metrics()
        self._add_media_metrics()

    def _add_call_metrics(self) -> None:
        registry = self.registry
        self._calls = Counter("glimpse_requests", "Calls ended.", ["method", "code"], registry=registry)
        self._call_seconds = Histogram(
            "glimpse_request_seconds", "Duration of calls.", ["method"], buckets=_CALL_BUCKETS, registry=registry
        )
        self._calls_running = Gauge("glimpse_requests_running", "Calls being served.", registry=registry)
        self._first_token_seconds = Histogram(
            "glimpse_time_to_first_token_seconds",
            "From a request's arrival to its first token, media and prompt included.",
            buckets=_FIRST_TOKEN_BUCKETS,
            registry=registry,
        )
        self._next_token_seconds = Histogram(
            "glimpse_inter_token_seconds",
            "Between one delivery of tokens and the next of the same answer.",
            buckets=_NEXT_TOKEN_BUCKETS,
            registry=registry,
        )

    def _add_engine_metrics(self) -> None:
        registry = self.registry
        self._running = Gauge("glimpse_running_sequences", "Sequences being computed.", registry=registry)
        self._waiting = Gauge("glimpse_waiting_sequences", "Sequences waiting.", registry=registry)
        self._used_blocks = Gauge("glimpse_kv_blocks_used", "KV blocks held by sequences.", registry=registry)
        self._blocks = Gauge("glimpse_kv_blocks", "KV blocks there are.", registry=registry)
        self._prompt_tokens = Counter("glimpse_prompt_tokens", "Prompt tokens computed.", registry=registry)
        self._cached_tokens = Counter(
            "glimpse_cached_tokens", "Prompt tokens spared by the prefix cache.", registry=registry
        )
        self._generated_tokens = Counter("glimpse_generated_tokens", "Tokens generated.", registry=registry)
        self._encoded_media = Counter(
            "glimpse_encoded_media", "Media that went through the encoder.", registry=registry
        )
        self._encodings_spared = Counter(
            "glimpse_encodings_spared", "Media that requests had encoded before.", registry=registry
        )
        self._draft_tokens = Counter(
            "glimpse_draft_tokens", "Draft tokens that were verified (--speculative).", registry=registry
        )
        self._accepted_tokens = Counter(
            "glimpse_accepted_tokens", "Draft tokens that were accepted.", registry=registry
        )
        self._preemptions = Counter("glimpse_preemptions", "Sequences set back for want of blocks.", registry=registry)
        self._step_seconds = Histogram(
            "glimpse_engine_step_seconds", "Duration of engine steps.", buckets=_NEXT_TOKEN_BUCKETS, registry=registry
        )
        self._restarts = Counter("glimpse_engine_restarts", "Restarts of the engine process.", registry=registry)
        self._ready = Gauge("glimpse_engine_ready", "1 while the engine takes requests.", registry=registry)

    def _add_media_metrics(self) -> None:
        registry = self.registry
        self._media_files = Counter(
            "glimpse_media_fetches",
            "Files of URLs: fetched, or spared because they were kept or being fetched.",
            ["outcome"],
            registry=registry,
        )
        self._media = Counter(
            "glimpse_media",
            "Media loaded: decoded, or spared because they were kept or being decoded.",
            ["outcome"],
            registry=registry,
        )
        self._fetch_seconds = Histogram(
            "glimpse_media_fetch_seconds",
            "What a request waits for media servers, all its files together.",
            buckets=_CALL_BUCKETS,
            registry=registry,
        )
        self._decode_seconds = Histogram(
            "glimpse_media_decode_seconds",
            "What a request waits for decoding, all its media together.",
            buckets=_CALL_BUCKETS,
            registry=registry,
        )
        self._media_bytes = Gauge(
            "glimpse_media_bytes", "Memory of media: kept, uploaded, in_flight.", ["what"], registry=registry
        )

    def watch_media(self, what: str, num_bytes: Callable[[], int]) -> None:
        """Reports a memory of media; `num_bytes` is asked, from another thread, each time that metrics are read."""
        self._media_bytes.labels(what).set_function(num_bytes)

    def media_loaded(self, usage: MediaUsage) -> None:
        """The media of a request have been loaded, or those that could be."""
        self._media_files.labels("fetched").inc(usage.num_fetched)
        self._media_files.labels("spared").inc(usage.num_fetch_cache_hits)
        self._media.labels("decoded").inc(usage.num_decoded)
        self._media.labels("spared").inc(usage.num_decode_cache_hits)
        if usage.num_fetched or usage.num_fetch_cache_hits:
            self._fetch_seconds.observe(usage.fetch_seconds)
        if usage.num_media:
            self._decode_seconds.observe(usage.decode_seconds)

    def answered(self, encodings_spared: int) -> None:
        """A request is answered; of its media so many were encoded already."""
        self._encodings_spared.inc(encodings_spared)

    def calls_running(self, count: int) -> None:
        self._calls_running.set(count)

    def call_ended(self, method: str, code: str, seconds: float) -> None:
        self._calls.labels(method, code).inc()
        self._call_seconds.labels(method).observe(seconds)

    def answer_clock(self) -> "AnswerClock":
        """Starts the clock of a request."""
        return AnswerClock(self._first_token_seconds, self._next_token_seconds)

    def engine_changed(self, state: EngineState, *, num_blocks: int) -> None:
        self._ready.set(state is EngineState.READY)
        self._blocks.set(num_blocks)
        if state is EngineState.RESTARTING:
            self._restarts.inc()
        if state is not EngineState.READY:
            for gauge in (self._running, self._waiting, self._used_blocks):
                gauge.set(0)

    def engine_stepped(self, stats: StepStats) -> None:
        self._running.set(stats.num_running)
        self._waiting.set(stats.num_waiting)
        self._used_blocks.set(stats.num_used_blocks)
        self._prompt_tokens.inc(stats.num_prompt_tokens)
        self._cached_tokens.inc(stats.num_cached_tokens)
        self._generated_tokens.inc(stats.num_generated_tokens)
        self._encoded_media.inc(stats.num_encoded_media)
        self._preemptions.inc(stats.num_preemptions)
        self._draft_tokens.inc(stats.num_draft_tokens)
        self._accepted_tokens.inc(stats.num_accepted_tokens)
        self._step_seconds.observe(stats.step_seconds)


class AnswerClock:
    """Measures one answer: time to first token, then the time between tokens."""

    def __init__(self, first_token_seconds: Histogram, next_token_seconds: Histogram) -> None:
        self._histogram = first_token_seconds
        self._next_token_seconds = next_token_seconds
        self._last = time.monotonic()

    def tick(self) -> None:
        """Tokens have come."""
        now = time.monotonic()
        self._histogram.observe(now - self._last)
        self._histogram = self._next_token_seconds
        self._last = now


class MetricsServer:
    """Answers Prometheus, in a thread of its own."""

    def __init__(self, metrics: Metrics, host: str, port: int) -> None:
        """Raises OSError if the port cannot be had; 0 takes a free one."""
        self._server, self._thread = start_http_server(port, host, metrics.registry)
        self.port = self._server.server_port

    def close(self) -> None:
        """Blocks until the thread has ended. May be called twice."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
