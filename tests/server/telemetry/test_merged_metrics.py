"""Metrics of several front ends are those that one process would have, also after some of them ended."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.registry import Collector

from glimpse.engine.client.engine_client import EngineState
from glimpse.engine.protocol.messages import Ready, StepStats
from glimpse.server.settings import MetricsNames
from glimpse.server.telemetry.merged_metrics import MergedMetrics
from glimpse.server.telemetry.metrics import Metrics
from glimpse.server.telemetry.snapshots import MetricsSnapshot, take_snapshot
from glimpse.server.telemetry.vllm_names import named_registry

READY = Ready(device="cpu", dtype="float32", max_model_len=64, num_blocks=128, block_size=16, load_seconds=1.0)
STATS = StepStats(
    num_running=1,
    num_waiting=2,
    num_used_blocks=3,
    num_prompt_tokens=4,
    num_generated_tokens=5,
    num_cached_tokens=6,
    num_encoded_media=7,
    num_preemptions=8,
    step_seconds=0.25,
    num_draft_tokens=9,
    num_accepted_tokens=10,
    num_admitted_tokens=11,
)
NAMES: Sequence[MetricsNames] = ("glimpse", "vllm", "both")


def snapshot(metrics: Metrics) -> MetricsSnapshot:
    """Returns what a front end sends, as it arrives."""
    sent = msgspec.msgpack.encode(take_snapshot(metrics.registry, without=metrics.engine_families))
    return msgspec.msgpack.decode(sent, type=MetricsSnapshot)


class FrontEnds:
    """Metrics of front ends in this process, and whether each of them answers."""

    def __init__(self, count: int) -> None:
        self.own = Metrics("m")
        self.each = {number: Metrics("m") for number in range(count)}
        self.silent: set[int] = set()
        self.num_reads = 0
        self.merged = MergedMetrics(self.own.registry, self.read)

    def read(self) -> Mapping[int, MetricsSnapshot]:
        self.num_reads += 1
        return {number: snapshot(metrics) for number, metrics in self.each.items() if number not in self.silent}

    def end(self, number: int) -> None:
        del self.each[number]
        self.merged.retire(number)


def values(metrics: Collector) -> dict[str, float]:
    """Returns each sample by name{label=value}."""
    return {
        sample.name + "".join(f"{{{key}={value}}}" for key, value in sample.labels.items()): sample.value
        for family in metrics.collect()
        for sample in family.samples
    }


def described(metrics: Collector) -> list[tuple[str, str, str]]:
    return [(family.name, family.type, family.documentation) for family in metrics.collect()]


# Multiples of 1/8 have exact sums, so one process's sum is that of several.
seconds = st.integers(0, 5000).map(lambda eighths: eighths / 8)
events: st.SearchStrategy[Callable[[Metrics], None]] = st.one_of(
    st.builds(
        lambda method, code, value: lambda metrics: metrics.rpc_ended(method, code, value),
        *(st.sampled_from(["A", "B"]), st.sampled_from(["OK", "CANCELLED"]), seconds),
    ),
    st.builds(lambda value: lambda metrics: metrics.next_tokens(value), seconds),
    st.builds(lambda count: lambda metrics: metrics.count_embeddings(count), st.integers(1, 9)),
    st.builds(
        lambda reason, value, count: (
            lambda metrics: metrics.completion_finished(
                reason, since_arrival=value, decode=value, num_prompt_tokens=count, num_tokens=count
            )
        ),
        *(st.sampled_from(["stop", "length"]), seconds, st.integers(1, 9000)),
    ),
)


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 2), events), max_size=12))
def test_front_ends_together_report_what_one_process_would(
    recorded: list[tuple[int, Callable[[Metrics], None]]],
) -> None:
    front_ends, reference = FrontEnds(3), Metrics("m")
    for number, record in recorded:
        record(front_ends.each[number])
        record(reference)
    assert values(front_ends.merged) == values(reference.registry)
    assert described(front_ends.merged) == described(reference.registry)


def test_merged_metrics_are_written_as_those_of_one_process() -> None:
    front_ends, reference = FrontEnds(2), Metrics("m")
    for metrics in (front_ends.each[1], reference):
        metrics.rpc_ended("A", "OK", 0.5)
        metrics.engine_changed(EngineState.READY, READY)
    front_ends.own.engine_changed(EngineState.READY, READY)
    merged = named_registry(front_ends.merged, "both", model_name="m", ready=lambda: READY)
    one = named_registry(reference.registry, "both", model_name="m", ready=lambda: READY)
    assert generate_latest(merged) == generate_latest(one)


def test_the_engine_is_reported_by_the_supervisor_alone() -> None:
    front_ends = FrontEnds(3)
    for metrics in (front_ends.own, *front_ends.each.values()):
        metrics.engine_changed(EngineState.RESTARTING, None)
        metrics.engine_changed(EngineState.READY, READY)
        metrics.engine_stepped(STATS)
    assert values(front_ends.merged) == values(front_ends.own.registry)
    assert values(front_ends.merged)["glimpse_engine_ready"] == 1


def test_engine_families_are_those_that_the_engine_changes() -> None:
    metrics = Metrics("m")
    metrics.add_media_store()
    metrics.add_quota_store()
    before = {family.name: family.samples for family in metrics.registry.collect()}
    metrics.engine_changed(EngineState.RESTARTING, None)
    metrics.engine_changed(EngineState.READY, READY)
    metrics.engine_changed(EngineState.STALLED, READY)
    metrics.engine_changed(EngineState.READY, READY)
    metrics.engine_stepped(STATS)
    changed = {family.name for family in metrics.registry.collect() if family.samples != before[family.name]}
    assert changed == metrics.engine_families


def test_gauges_are_summed() -> None:
    front_ends = FrontEnds(2)
    for number, metrics in front_ends.each.items():
        metrics.set_running_rpcs(3 + number)
        metrics.watch_media("cached", partial(int, 100))
    front_ends.own.watch_media("uploaded", lambda: 50)
    merged = values(front_ends.merged)
    assert merged["glimpse_requests_running"] == 7
    assert merged["glimpse_media_bytes{state=cached}"] == 200
    assert merged["glimpse_media_bytes{state=uploaded}"] == 50


@pytest.mark.parametrize(("states", "expected"), [((True, True), 1), ((True, False), 0), ((False, True), 0)])
def test_a_store_is_available_if_all_front_ends_reach_it(states: tuple[bool, bool], expected: float) -> None:
    front_ends = FrontEnds(2)
    for metrics, is_available in zip(front_ends.each.values(), states, strict=True):
        metrics.add_media_store()
        metrics.set_media_store_available(is_available)
        metrics.add_quota_store()
        metrics.set_quota_store_available(is_available)
    merged = values(front_ends.merged)
    assert merged["glimpse_media_store_available"] == expected
    assert merged["glimpse_quota_store_available"] == expected


def test_counts_of_a_front_end_outlive_its_process() -> None:
    front_ends = FrontEnds(2)
    for metrics in front_ends.each.values():
        metrics.rpc_ended("A", "OK", 0.5)
        metrics.set_running_rpcs(2)
    before = values(front_ends.merged)
    front_ends.end(1)
    after = values(front_ends.merged)
    assert after == before | {"glimpse_requests_running": 2}
    front_ends.each[1] = Metrics("m")
    front_ends.each[1].rpc_ended("A", "OK", 0.5)
    front_ends.each[1].set_running_rpcs(5)
    restarted = values(front_ends.merged)
    assert restarted["glimpse_requests_total{method=A}{code=OK}"] == 3
    assert restarted["glimpse_request_seconds_sum{method=A}"] == 1.5
    assert restarted["glimpse_requests_running"] == 7


def test_a_front_end_that_was_never_read_may_end() -> None:
    front_ends = FrontEnds(2)
    front_ends.end(0)
    front_ends.each[1].rpc_ended("A", "OK", 0.5)
    assert values(front_ends.merged)["glimpse_requests_total{method=A}{code=OK}"] == 1


def test_a_front_end_that_does_not_answer_counts_as_it_last_did() -> None:
    front_ends = FrontEnds(2)
    front_ends.each[1].rpc_ended("A", "OK", 0.5)
    front_ends.each[1].set_running_rpcs(4)
    before = values(front_ends.merged)
    front_ends.each[1].rpc_ended("A", "OK", 0.5)
    front_ends.silent.add(1)
    assert values(front_ends.merged) == before
    front_ends.silent.clear()
    assert values(front_ends.merged)["glimpse_requests_total{method=A}{code=OK}"] == 2


def test_an_answer_of_a_front_end_that_ends_during_the_scrape_counts_once() -> None:
    front_ends = FrontEnds(1)
    front_ends.each[0].rpc_ended("A", "OK", 0.5)
    before = values(front_ends.merged)

    def read_and_end() -> Mapping[int, MetricsSnapshot]:
        answers = front_ends.read()
        merged.retire(0)
        front_ends.each[0] = Metrics("m")
        return answers

    reads = iter([front_ends.read, read_and_end, front_ends.read])
    merged = MergedMetrics(front_ends.own.registry, lambda: next(reads)())
    assert values(merged) == before
    assert values(merged) == before
    assert values(merged) == before


def test_one_scrape_at_a_time_reads_the_front_ends() -> None:
    running, most = 0, 0

    def read() -> Mapping[int, MetricsSnapshot]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.005)
        running -= 1
        return {}

    merged = MergedMetrics(Metrics("m").registry, read)
    with ThreadPoolExecutor(4) as scrapes:
        list(scrapes.map(values, [merged] * 4))
    assert most == 1


def test_sums_do_not_change_by_the_last_bit_when_front_ends_end() -> None:
    rng, front_ends = random.Random(7), FrontEnds(6)
    for metrics in front_ends.each.values():
        for method in range(20):
            metrics.rpc_ended(str(method), "OK", rng.random() * 10 ** rng.randint(-3, 3))
    before = values(front_ends.merged)
    for number in (3, 0, 5, 1, 2, 4):
        front_ends.end(number)
        assert values(front_ends.merged) == before


@pytest.mark.parametrize("names", NAMES)
def test_a_scrape_reads_the_front_ends_once(names: MetricsNames) -> None:
    front_ends = FrontEnds(2)
    registry = named_registry(front_ends.merged, names, model_name="m", ready=lambda: READY)
    assert front_ends.num_reads == 0
    assert list(registry.collect())
    assert front_ends.num_reads == 1


def test_vllms_names_have_the_sums_of_all_front_ends() -> None:
    front_ends = FrontEnds(2)
    front_ends.own.engine_changed(EngineState.READY, READY)
    front_ends.own.engine_stepped(STATS)
    for metrics in front_ends.each.values():
        metrics.engine_changed(EngineState.READY, READY)
        metrics.completion_finished("stop", since_arrival=2.0, decode=1.0, num_prompt_tokens=20, num_tokens=7)
        metrics.completion_aborted("cancelled")
    merged = values(named_registry(front_ends.merged, "vllm", model_name="m", ready=lambda: READY))
    labels = "{model_name=m}{engine=0}"
    assert merged[f"vllm:e2e_request_latency_seconds_sum{labels}"] == 4
    assert merged[f"vllm:request_generation_tokens_count{labels}"] == 2
    assert merged[f"vllm:request_success_total{labels}{{finished_reason=stop}}"] == 2
    assert merged[f"vllm:request_success_total{labels}{{finished_reason=abort}}"] == 2
    assert merged[f"vllm:num_requests_waiting{labels}"] == 2
    assert merged[f"vllm:kv_cache_usage_perc{labels}"] == 3 / 128
    assert merged[f"vllm:cache_config_info{labels}{{block_size=16}}{{num_gpu_blocks=128}}"] == 1
