"""The server's metrics under the names and labels that vLLM gives to the same quantities.

Inference gateways, autoscalers and dashboards that are made for vLLM read these. Nothing is measured twice: each scrape
derives them from the metrics of one process, or from the sums of several.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from glimpse.engine.protocol.messages import Ready
from glimpse.server.settings import MetricsNames

_ENGINE = "0"
"""vLLM numbers its engines; this server has one."""

_GAUGES: Mapping[str, str] = {
    "vllm:num_requests_running": "glimpse_running_sequences",
    "vllm:num_requests_waiting": "glimpse_waiting_sequences",
}
_COUNTERS: Mapping[str, str] = {
    "vllm:num_preemptions": "glimpse_preemptions",
    "vllm:prompt_tokens": "glimpse_admitted_tokens",
    "vllm:generation_tokens": "glimpse_generated_tokens",
    "vllm:prefix_cache_queries": "glimpse_admitted_tokens",
    "vllm:prefix_cache_hits": "glimpse_cached_tokens",
    "vllm:spec_decode_num_draft_tokens": "glimpse_draft_tokens",
    "vllm:spec_decode_num_accepted_tokens": "glimpse_accepted_tokens",
}
_HISTOGRAMS: Mapping[str, str] = {
    "vllm:time_to_first_token_seconds": "glimpse_time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds": "glimpse_inter_token_seconds",
    "vllm:e2e_request_latency_seconds": "glimpse_completion_seconds",
    "vllm:request_queue_time_seconds": "glimpse_queue_seconds",
    "vllm:request_prefill_time_seconds": "glimpse_prefill_seconds",
    "vllm:request_decode_time_seconds": "glimpse_decode_seconds",
    "vllm:request_prompt_tokens": "glimpse_completion_prompt_tokens",
    "vllm:request_generation_tokens": "glimpse_completion_tokens",
}
_FINISHED_REASONS: Mapping[str, str] = {
    "stop": "stop",
    "tool_calls": "stop",
    "length": "length",
    "cancelled": "abort",
    "deadline_exceeded": "abort",
    "error": "error",
}
"""Reason of glimpse_completions_total → vLLM's `finished_reason`."""


class VllmNames:
    """Derives vLLM's metrics from a server's own."""

    def __init__(self, model_name: str, ready: Callable[[], Ready | None]) -> None:
        """`ready` returns what the engine reported when it became ready; None before that."""
        self._ready = ready
        self._labels = {"model_name": model_name, "engine": _ENGINE}

    def derive(self, families: Iterable[Metric]) -> Iterator[Metric]:
        """Yields vLLM's metrics with the values of the server's own families."""
        own = {family.name: family for family in families}
        for name, source in _GAUGES.items():
            yield self._gauge(name, own[source].documentation, _value(own[source]))
        for name, source in _COUNTERS.items():
            yield self._counter(name, own[source].documentation, _value(own[source], "_total"))
        for name, source in _HISTOGRAMS.items():
            yield self._histogram(name, own[source])
        used, blocks = _value(own["glimpse_kv_blocks_used"]), _value(own["glimpse_kv_blocks"])
        text = "Share of the KV cache in use by sequences, from 0 to 1."
        yield self._gauge("vllm:kv_cache_usage_perc", text, used / blocks if blocks else 0.0)
        yield from self._media(own["glimpse_media"])
        yield self._request_success(own["glimpse_completions"])
        yield self._cache_config()

    def _media(self, media: Metric) -> Iterator[Metric]:
        outcomes = {sample.labels["outcome"]: sample.value for sample in _samples(media, "_total")}
        yield self._counter("vllm:mm_cache_queries", "Media looked up in the cache.", sum(outcomes.values()))
        yield self._counter("vllm:mm_cache_hits", "Media found in the cache.", outcomes.get("cache_hit", 0.0))

    def _request_success(self, completions: Metric) -> Metric:
        counts = dict.fromkeys(_FINISHED_REASONS.values(), 0.0)
        for sample in _samples(completions, "_total"):
            counts[_FINISHED_REASONS[sample.labels["reason"]]] += sample.value
        labels = (*self._labels, "finished_reason")
        family = CounterMetricFamily("vllm:request_success", completions.documentation, labels=labels)
        for reason, count in counts.items():
            family.add_metric((*self._labels.values(), reason), count)
        return family

    def _cache_config(self) -> Metric:
        ready = self._ready()
        sizes = {"block_size": ready.block_size, "num_gpu_blocks": ready.num_blocks} if ready else {}
        labels = (*self._labels, "block_size", "num_gpu_blocks")
        family = GaugeMetricFamily("vllm:cache_config_info", "Size of the KV cache, as labels.", labels=labels)
        if sizes:
            family.add_metric((*self._labels.values(), *map(str, sizes.values())), 1.0)
        return family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=tuple(self._labels))
        family.add_metric(tuple(self._labels.values()), value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=tuple(self._labels))
        family.add_metric(tuple(self._labels.values()), value)
        return family

    def _histogram(self, name: str, source: Metric) -> Metric:
        family = HistogramMetricFamily(name, source.documentation, labels=tuple(self._labels))
        buckets = [(sample.labels["le"], sample.value) for sample in _samples(source, "_bucket")]
        family.add_metric(tuple(self._labels.values()), buckets, _value(source, "_sum"))
        return family


@dataclass(frozen=True, slots=True, kw_only=True)
class _NamedMetrics(Collector):
    """A server's metrics under its own names, vLLM's, or both. Reads them once for each scrape."""

    own: Collector
    names: MetricsNames
    vllm: VllmNames

    def collect(self) -> Iterator[Metric]:
        families = list(self.own.collect())
        if self.names != "vllm":
            yield from families
        if self.names != "glimpse":
            yield from self.vllm.derive(families)


def named_registry(
    own: Collector, names: MetricsNames, *, model_name: str, ready: Callable[[], Ready | None]
) -> CollectorRegistry:
    """Returns a registry of the server's metrics under its own names, vLLM's, or both.

    Args:
        own: The families of `Metrics`, of one process or merged.
        model_name: The label of vLLM's metrics.
        ready: Returns what the engine reported when it became ready; None before that.
    """
    registry = CollectorRegistry()
    registry.register(_NamedMetrics(own=own, names=names, vllm=VllmNames(model_name, ready)))
    return registry


def _samples(family: Metric, suffix: str) -> list[Sample]:
    return [sample for sample in family.samples if sample.name == family.name + suffix]


def _value(family: Metric, suffix: str = "") -> float:
    """Returns the value of a metric that has a single sample of this name."""
    (sample,) = _samples(family, suffix)
    return sample.value
