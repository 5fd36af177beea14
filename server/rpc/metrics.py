"""Prometheus metrics of the server: their names, units and help texts."""

import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app, start_http_server

from glimpse.engine.ipc.client import EngineState
from glimpse.engine.protocol import StepStats
from glimpse.media.cache.request_media import MediaUsage

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_RPC_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_FIRST_TOKEN_BUCKETS = (0.01, 0.02, 0.04, 0.08, 0.15, 0.25, 0.5, 0.75, 1, 2, 4, 8, 16, 32, 64)
_LOOP_DELAY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_NEXT_TOKEN_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5)


class Metrics:
    """The server's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._add_rpc_metrics()
        self._add_engine_metrics()
        self._add_media_metrics()

    def _counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float], labels: Sequence[str] = ()) -> Histogram:
        return Histogram(name, text, labels, buckets=buckets, registry=self.registry)

    def _add_rpc_metrics(self) -> None:
        self._rpcs = self._counter("glimpse_requests", "RPCs completed, by method and status code.", ["method", "code"])
        self._rpc_seconds = self._histogram(
            "glimpse_request_seconds", "Duration of RPCs in seconds.", _RPC_BUCKETS, ["method"]
        )
        self._running_rpcs = self._gauge("glimpse_requests_running", "RPCs in progress.")
        self._first_token_seconds = self._histogram(
            "glimpse_time_to_first_token_seconds",
            "Seconds from a request's arrival to the first token of a completion; includes media and prefill.",
            _FIRST_TOKEN_BUCKETS,
        )
        self._next_token_seconds = self._histogram(
            "glimpse_inter_token_seconds",
            "Seconds between successive token deliveries of a completion.",
            _NEXT_TOKEN_BUCKETS,
        )

        self._loop_delay = self._histogram(
            "glimpse_event_loop_delay_seconds",
            "How late the front end's event loop runs what is due, measured 20 times a second.",
            _LOOP_DELAY_BUCKETS,
        )

    def _add_engine_metrics(self) -> None:
        self._running = self._gauge("glimpse_running_sequences", "Sequences being computed.")
        self._waiting = self._gauge("glimpse_waiting_sequences", "Sequences waiting to be scheduled.")
        self._used_blocks = self._gauge("glimpse_kv_blocks_used", "KV cache blocks in use by sequences.")
        self._blocks = self._gauge("glimpse_kv_blocks", "KV cache blocks in total.")
        self._prompt_tokens = self._counter("glimpse_prompt_tokens", "Prompt tokens computed.")
        self._cached_tokens = self._counter("glimpse_cached_tokens", "Prompt tokens found in the prefix cache.")
        self._generated_tokens = self._counter("glimpse_generated_tokens", "Tokens generated.")
        self._embeddings = self._counter("glimpse_embeddings", "Inputs embedded, and documents scored.")
        self._encoded_media = self._counter("glimpse_encoded_media", "Media items run through the encoder.")
        self._encoder_cache_hits = self._counter(
            "glimpse_encoder_cache_hits", "Media items of requests that needed no encoder run."
        )
        self._draft_tokens = self._counter("glimpse_draft_tokens", "Draft tokens that were verified (--speculative).")
        self._accepted_tokens = self._counter("glimpse_accepted_tokens", "Draft tokens that were accepted.")
        self._preemptions = self._counter("glimpse_preemptions", "Sequences preempted for KV blocks or fair shares.")
        self._step_seconds = self._histogram(
            "glimpse_engine_step_seconds", "Duration of engine steps in seconds.", _NEXT_TOKEN_BUCKETS
        )
        self._restarts = self._counter("glimpse_engine_restarts", "Restarts of the engine process.")
        self._ready = self._gauge("glimpse_engine_ready", "1 while the engine accepts requests, else 0.")

    def _add_media_metrics(self) -> None:
        self._media_files = self._counter(
            "glimpse_media_fetches",
            "Files of media URLs, by outcome: fetched, or cache_hit if cached or already being fetched.",
            ["outcome"],
        )
        self._media = self._counter(
            "glimpse_media",
            "Media items loaded, by outcome: decoded, or cache_hit if cached or already being decoded.",
            ["outcome"],
        )
        self._fetch_seconds = self._histogram(
            "glimpse_media_fetch_seconds", "Seconds that a request waits for its media files.", _RPC_BUCKETS
        )
        self._decode_seconds = self._histogram(
            "glimpse_media_decode_seconds", "Seconds that a request waits for its media to be decoded.", _RPC_BUCKETS
        )
        self._media_bytes = self._gauge(
            "glimpse_media_bytes", "Memory used by media in bytes: cached, uploaded or in_flight.", ["state"]
        )

    def watch_media(self, state: str, num_bytes: Callable[[], int]) -> None:
        """Reports memory used by media. `num_bytes` is called from another thread whenever metrics are scraped."""
        self._media_bytes.labels(state).set_function(num_bytes)

    def media_loaded(self, usage: MediaUsage) -> None:
        """Records the media of a request after they were loaded, or some could not be."""
        self._media_files.labels("fetched").inc(usage.num_fetched)
        self._media_files.labels("cache_hit").inc(usage.num_fetch_cache_hits)
        self._media.labels("decoded").inc(usage.num_decoded)
        self._media.labels("cache_hit").inc(usage.num_decode_cache_hits)
        if usage.num_fetched or usage.num_fetch_cache_hits:
            self._fetch_seconds.observe(usage.fetch_seconds)
        if usage.num_media:
            self._decode_seconds.observe(usage.decode_seconds)

    def count_encoder_cache_hits(self, count: int) -> None:
        """Records how many media items of a finished request needed no encoder run."""
        self._encoder_cache_hits.inc(count)

    def count_embeddings(self, count: int) -> None:
        """Records the embeddings of a request."""
        self._embeddings.inc(count)

    def loop_delayed(self, seconds: float) -> None:
        """Records a measured delay of the event loop."""
        self._loop_delay.observe(seconds)

    def set_running_rpcs(self, count: int) -> None:
        self._running_rpcs.set(count)

    def rpc_ended(self, method: str, code: str, seconds: float) -> None:
        self._rpcs.labels(method, code).inc()
        self._rpc_seconds.labels(method).observe(seconds)

    def start_completion_timer(self) -> "CompletionTimer":
        """Starts timing a completion."""
        return CompletionTimer(self._first_token_seconds, self._next_token_seconds)

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


class CompletionTimer:
    """Measures one completion: time to first token, then inter-token latency."""

    def __init__(self, first_token_seconds: Histogram, next_token_seconds: Histogram) -> None:
        self._histogram = first_token_seconds
        self._next_token_seconds = next_token_seconds
        self._last = time.monotonic()

    def observe_tokens(self) -> None:
        """Records that tokens have arrived."""
        now = time.monotonic()
        self._histogram.observe(now - self._last)
        self._histogram = self._next_token_seconds
        self._last = now


class MetricsServer:
    """Serves metrics to Prometheus over HTTP, in a thread of its own."""

    def __init__(self, metrics: Metrics, host: str, port: int) -> None:
        """Raises OSError if the port cannot be listened on. Port 0 picks a free one."""
        self._server, self._thread = start_http_server(port, host, metrics.registry)
        if host in ("localhost", "::1") or host.startswith("127."):
            # The web page of a host name that resolves to this machine could read the metrics.
            self._server.set_app(_only_hosts({*_LOCAL_HOSTS, host}, make_wsgi_app(metrics.registry)))
        self.port = self._server.server_port

    def close(self) -> None:
        """Blocks until the thread has ended. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _only_hosts(names: Iterable[str], app: "WSGIApplication") -> "WSGIApplication":
    """Returns the application, which answers requests to other hosts with 403."""

    def checked(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        host = re.sub(r":\d*$", "", environ.get("HTTP_HOST", "localhost")).lower()
        if host in names:
            return app(environ, start_response)
        start_response("403 Forbidden", [("Content-Type", "text/plain")])
        return [b"'Host': expected a name of this machine\n"]

    return checked
