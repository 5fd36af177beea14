"""Prometheus metrics of the server: their names, units and help texts."""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from glimpse.engine.client.supervisor import EngineState
from glimpse.engine.protocol.messages import Ready, RequestStats, StepStats
from glimpse.log_writer import num_dropped_lines
from glimpse.media.cache.request_media import MediaUsage
from glimpse.media.shared.values import Outcome

# A series more for each counter and histogram: when it was made, which no dashboard here asks.
disable_created_metrics()

MODEL_LABEL = "model_name"
"""Label of metrics about completions: the model's name."""

_RPC_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_FIRST_TOKEN_BUCKETS = (0.01, 0.02, 0.04, 0.08, 0.15, 0.25, 0.5, 0.75, 1, 2, 4, 8, 16, 32, 64)
_LOOP_DELAY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_TOKEN_BUCKETS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
_STAGE_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_NEXT_TOKEN_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5)


class Metrics:
    """The server's metrics, in a registry of their own."""

    def __init__(self, model_name: str = "") -> None:
        """`model_name` is the label of metrics by model."""
        self.model_name = model_name
        self.registry = CollectorRegistry()
        self.ready: Ready | None = None
        """What the engine reported when it became ready; None before that."""
        self._add_engine_metrics()
        self.engine_families = frozenset(family.name for family in self.registry.collect())
        """Names of the families that the engine's reports change: those of `engine_changed` and `engine_stepped`."""
        self._add_rpc_metrics()
        self._add_completion_metrics()
        self._add_media_metrics()

    def _counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float], labels: Sequence[str] = ()) -> Histogram:
        return Histogram(name, text, labels, buckets=buckets, registry=self.registry)

    def _add_rpc_metrics(self) -> None:
        self._rpcs = self._counter(
            "glimpse_requests", "RPCs completed, by method and status code. Without health checks.", ["method", "code"]
        )
        self._rpc_seconds = self._histogram(
            "glimpse_request_seconds", "Duration of RPCs in seconds.", _RPC_BUCKETS, ["method"]
        )
        self._running_rpcs = self._gauge("glimpse_requests_running", "RPCs in progress.")
        self._loop_delay = self._histogram(
            "glimpse_event_loop_delay_seconds",
            "How late the front end's event loop runs what is due, measured 20 times a second.",
            _LOOP_DELAY_BUCKETS,
        )
        self.registry.register(_DroppedLines())

    def _add_completion_metrics(self) -> None:
        self._first_token_seconds = self._histogram(
            "glimpse_time_to_first_token_seconds",
            "Seconds from a request's arrival to the first token of a completion; includes media and prefill.",
            _FIRST_TOKEN_BUCKETS,
        )
        self._next_token_seconds = _LoopHistogram(
            "glimpse_inter_token_seconds",
            "Seconds between successive token deliveries of a completion.",
            _NEXT_TOKEN_BUCKETS,
        )
        self.registry.register(self._next_token_seconds)
        self._queue_seconds = self._stage_histogram(
            "glimpse_queue_seconds", "Seconds from a prompt's arrival in the engine to the first step that computes it."
        )
        self._encode_seconds = self._stage_histogram(
            "glimpse_encode_seconds",
            "Seconds that a prompt waits for the encoder. Prompts that need none do not count.",
        )
        self._prefill_seconds = self._stage_histogram(
            "glimpse_prefill_seconds",
            "Seconds from the first step with a prompt to its first token, or its embedding. Includes encoding.",
        )
        self._token_decode_seconds = self._stage_histogram(
            "glimpse_decode_seconds", "Seconds from the first to the last token of a completion that finished."
        )
        self._completion_seconds = self._stage_histogram(
            "glimpse_completion_seconds", "Seconds from a request's arrival to the end of a completion that finished."
        )
        self._completion_prompt_tokens = self._token_histogram(
            "glimpse_completion_prompt_tokens", "Prompt tokens of each completion that finished."
        )
        self._completion_tokens = self._token_histogram(
            "glimpse_completion_tokens", "Tokens of each completion that finished."
        )
        self._completions = self._counter(
            "glimpse_completions",
            "Completions that ended, by reason: stop, length, tool_calls, cancelled, deadline_exceeded or error.",
            [MODEL_LABEL, "reason"],
        )
        self._embeddings = self._counter("glimpse_embeddings", "Inputs embedded, and documents scored.")

        self._batches_running = self._gauge("glimpse_batches_running", "Batches that are being answered.")
        self._batches = self._counter(
            "glimpse_batches", "Batches that ended: completed, failed, expired or cancelled.", ["status"]
        )
        self._batch_requests = self._counter(
            "glimpse_batch_requests", "Requests of batches with a result: completed or failed.", ["outcome"]
        )

    def _stage_histogram(self, name: str, text: str) -> Histogram:
        return self._histogram(name, text, _STAGE_BUCKETS, [MODEL_LABEL]).labels(self.model_name)

    def _token_histogram(self, name: str, text: str) -> Histogram:
        return self._histogram(name, text, _TOKEN_BUCKETS, [MODEL_LABEL]).labels(self.model_name)

    def _add_engine_metrics(self) -> None:
        self._running = self._gauge("glimpse_running_sequences", "Sequences being computed.")
        self._waiting = self._gauge("glimpse_waiting_sequences", "Sequences waiting to be scheduled.")
        self._used_blocks = self._gauge("glimpse_kv_blocks_used", "KV cache blocks in use by sequences.")
        self._blocks = self._gauge("glimpse_kv_blocks", "KV cache blocks in total.")
        self._prompt_tokens = self._counter("glimpse_prompt_tokens", "Prompt tokens computed.")
        self._cached_tokens = self._counter("glimpse_cached_tokens", "Prompt tokens found in the prefix cache.")
        self._admitted_tokens = self._counter(
            "glimpse_admitted_tokens", "Prompt tokens that were looked up in the prefix cache, computed or cached."
        )
        self._generated_tokens = self._counter("glimpse_generated_tokens", "Tokens generated.")
        self._encoded_media = self._counter("glimpse_encoded_media", "Media items run through the encoder.")
        self._draft_tokens = self._counter("glimpse_draft_tokens", "Draft tokens that were verified (--speculative).")
        self._accepted_tokens = self._counter("glimpse_accepted_tokens", "Draft tokens that were accepted.")
        self._preemptions = self._counter("glimpse_preemptions", "Sequences preempted for KV blocks or fair shares.")
        self._step_seconds = self._histogram(
            "glimpse_engine_step_seconds", "Duration of engine steps in seconds.", _NEXT_TOKEN_BUCKETS
        )
        self._restarts = self._counter("glimpse_engine_restarts", "Restarts of the engine process.")
        self._stalls = self._counter(
            "glimpse_engine_stalls", "Steps that took so many times the usual that health turned NOT_SERVING."
        )
        self._ready = self._gauge("glimpse_engine_ready", "1 while the engine serves: neither down nor stalled.")

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
        self._encoder_cache_hits = self._counter(
            "glimpse_encoder_cache_hits", "Media items of requests that needed no encoder run."
        )

    def add_media_store(self) -> None:
        """Adds the metrics of servers that have a media store."""
        self._store_available = self._gauge(
            "glimpse_media_store_available", "1 while the media store that servers share answers, else 0."
        )
        self._store_operations = self._counter(
            "glimpse_media_store_operations",
            "Operations on the media store, by outcome: hit, miss, stored, removed, skipped (not stored, for lack of "
            "room), damaged (refused and removed) or failed (the store was unavailable).",
            ["outcome"],
        )

    def set_media_store_available(self, is_available: bool) -> None:
        self._store_available.set(is_available)

    def add_quota_store(self) -> None:
        """Adds the metrics of servers that count quotas together."""
        self._quotas_available = self._gauge(
            "glimpse_quota_store_available",
            "1 while servers count the quotas of tenants together, 0 while each counts alone.",
        )

    def set_quota_store_available(self, is_available: bool) -> None:
        self._quotas_available.set(is_available)

    def media_store_used(self, outcome: Outcome) -> None:
        """Records an operation on the media store."""
        self._store_operations.labels(outcome).inc()

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

    def set_running_batches(self, count: int) -> None:
        self._batches_running.set(count)

    def batch_ended(self, status: str) -> None:
        """Counts a batch that ended."""
        self._batches.labels(status).inc()

    def batch_request_ended(self, outcome: str) -> None:
        """Counts a request of a batch whose result was stored."""
        self._batch_requests.labels(outcome).inc()

    def loop_delayed(self, seconds: float) -> None:
        """Records a measured delay of the event loop."""
        self._loop_delay.observe(seconds)

    def set_running_rpcs(self, count: int) -> None:
        self._running_rpcs.set(count)

    def rpc_ended(self, method: str, code: str, seconds: float) -> None:
        self._rpcs.labels(method, code).inc()
        self._rpc_seconds.labels(method).observe(seconds)

    def first_token(self, stats: RequestStats, *, since_arrival: float, prefill: float) -> None:
        """Records the stages of a completion up to its first token, in seconds."""
        self._first_token_seconds.observe(since_arrival)
        self.prompt_computed(stats, prefill=prefill)

    def prompt_computed(self, stats: RequestStats, *, prefill: float) -> None:
        """Records the stages of a prompt; `prefill` in seconds."""
        self._queue_seconds.observe(stats.queue_seconds)
        self._prefill_seconds.observe(prefill)
        if stats.encode_seconds:
            self._encode_seconds.observe(stats.encode_seconds)

    def next_tokens(self, seconds: float) -> None:
        """Records that tokens followed others of the same completion after so many seconds."""
        self._next_token_seconds.observe(seconds)

    def completion_finished(
        self, reason: str, *, since_arrival: float, decode: float, num_prompt_tokens: int, num_tokens: int
    ) -> None:
        """Records a completion that was delivered whole. Times are in seconds."""
        self._completions.labels(self.model_name, reason).inc()
        self._completion_seconds.observe(since_arrival)
        self._token_decode_seconds.observe(decode)
        self._completion_prompt_tokens.observe(num_prompt_tokens)
        self._completion_tokens.observe(num_tokens)

    def completion_aborted(self, reason: str) -> None:
        """Counts a completion that the engine was asked for and that did not finish."""
        self._completions.labels(self.model_name, reason).inc()

    def engine_changed(self, state: EngineState, ready: Ready | None) -> None:
        """Records the engine's state, and what it reported when it last became ready."""
        self.ready = ready
        self._ready.set(state is EngineState.READY)
        self._blocks.set(0 if ready is None else ready.num_blocks)
        if state is EngineState.RESTARTING:
            self._restarts.inc()
        if state is EngineState.STALLED:
            self._stalls.inc()
        if not state.takes_requests:
            for gauge in (self._running, self._waiting, self._used_blocks):
                gauge.set(0)

    def engine_stepped(self, stats: StepStats) -> None:
        self._running.set(stats.num_running)
        self._waiting.set(stats.num_waiting)
        self._used_blocks.set(stats.num_used_blocks)
        self._prompt_tokens.inc(stats.num_prompt_tokens)
        self._cached_tokens.inc(stats.num_cached_tokens)
        self._admitted_tokens.inc(stats.num_admitted_tokens)
        self._generated_tokens.inc(stats.num_generated_tokens)
        self._encoded_media.inc(stats.num_encoded_media)
        self._preemptions.inc(stats.num_preemptions)
        self._draft_tokens.inc(stats.num_draft_tokens)
        self._accepted_tokens.inc(stats.num_accepted_tokens)
        self._step_seconds.observe(stats.step_seconds)


class _LoopHistogram(Collector):
    """A histogram of what is observed for each token. Only the event loop changes it, so it needs no locks."""

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._text = text
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, amount: float) -> None:
        self._counts[bisect_left(self._bounds, amount)] += 1
        self._sum += amount

    def collect(self) -> Iterable[Metric]:
        names = map(floatToGoString, (*self._bounds, math.inf))
        buckets = list(zip(names, map(float, accumulate(self._counts)), strict=True))
        yield HistogramMetricFamily(self._name, self._text, buckets=buckets, sum_value=self._sum)


class _DroppedLines(Collector):
    """Counts lines of the log where they are dropped: the thread that writes the log has no metrics."""

    def collect(self) -> Iterable[Metric]:
        text = "Lines of the log that were dropped: standard error was not read in time, or its disk was full."
        yield CounterMetricFamily("glimpse_log_lines_dropped", text, value=num_dropped_lines())
