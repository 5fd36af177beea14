"""Stages and ends of completions in the metrics, and the same metrics under vLLM's names."""

import asyncio
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from prometheus_client.parser import text_string_to_metric_families

from glimpse.server.lifecycle.server import Server
from glimpse.server.telemetry.metrics import Metrics
from glimpse.v1 import chat_pb2_grpc, embedding_pb2, embedding_pb2_grpc
from tests.e2e.stack import Served
from tests.server.requests import image_part, png, request, user
from tests.server.serving import scripted
from tests.waiting import until

STAGES = ("queue", "prefill", "decode", "completion")


def scrape(port: int) -> dict[str, float]:
    """Returns each sample, as it is written: name{label="value",...}."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {
        sample.name + "".join(f"{{{key}={value}}}" for key, value in sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def change(server: Served, act: Callable[[], Any]) -> dict[str, float]:
    """Returns by how much an action changes each sample."""
    before = scrape(server.metrics_port)
    act()
    after = scrape(server.metrics_port)
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


def test_stages_of_a_completion_are_measured_by_model(
    chat: chat_pb2_grpc.ChatServiceStub, shared_server: Served
) -> None:
    changes = change(shared_server, lambda: chat.CreateChatCompletion(request()))
    counts = {stage: changes[f"glimpse_{stage}_seconds_count{{model_name=tiny}}"] for stage in STAGES}
    assert counts == dict.fromkeys(STAGES, 1.0)
    seconds = {stage: changes[f"glimpse_{stage}_seconds_sum{{model_name=tiny}}"] for stage in STAGES}
    assert seconds["prefill"] > 0
    assert seconds["queue"] + seconds["prefill"] + seconds["decode"] <= seconds["completion"]
    assert changes["glimpse_completion_tokens_sum{model_name=tiny}"] == 8
    assert changes["glimpse_completion_prompt_tokens_sum{model_name=tiny}"] > 0
    assert changes["glimpse_completions_total{model_name=tiny}{reason=length}"] == 1
    assert changes["glimpse_encode_seconds_count{model_name=tiny}"] == 0


def test_encoder_time_is_measured_once_for_an_image(chat: chat_pb2_grpc.ChatServiceStub, shared_server: Served) -> None:
    asked = request(user("What is it?", image_part(png(72, 56, (1, 2, 3)))))
    name = "glimpse_encode_seconds{}{{model_name=tiny}}"
    first = change(shared_server, lambda: chat.CreateChatCompletion(asked))
    assert first[name.format("_count")] == 1
    assert 0 < first[name.format("_sum")] <= first["glimpse_prefill_seconds_sum{model_name=tiny}"]
    again = change(shared_server, lambda: chat.CreateChatCompletion(asked))
    assert again[name.format("_count")] == 0


def test_each_completion_of_a_request_counts(chat: chat_pb2_grpc.ChatServiceStub, shared_server: Served) -> None:
    changes = change(shared_server, lambda: chat.CreateChatCompletion(request(n=3, max_completion_tokens=2)))
    assert changes["glimpse_completions_total{model_name=tiny}{reason=length}"] == 3
    assert changes["glimpse_queue_seconds_count{model_name=tiny}"] == 3


def test_embeddings_have_a_queue_and_a_prefill_but_no_completion(channel: grpc.Channel, shared_server: Served) -> None:
    embedding = embedding_pb2_grpc.EmbeddingServiceStub(channel)
    inputs = [embedding_pb2.EmbeddingInput(text=text) for text in ("one", "two", "three")]
    asked = embedding_pb2.CreateEmbeddingsRequest(inputs=inputs)
    changes = change(shared_server, lambda: embedding.CreateEmbeddings(asked))
    counts = {stage: changes[f"glimpse_{stage}_seconds_count{{model_name=tiny}}"] for stage in STAGES}
    assert counts == {"queue": 3, "prefill": 3, "decode": 0, "completion": 0}


async def hold(channel: grpc.aio.Channel, *, deadline: float | None = None) -> grpc.aio.Call:
    """Asks for an answer that has a token and never ends, and waits for the token."""
    chat: Any = chat_pb2_grpc.ChatServiceStub(channel)
    call = chat.StreamChatCompletion(request(), metadata=[("x-request-id", "hold-1")], timeout=deadline)
    await call.read()
    return call


async def until_sample(server: Server, name: str, value: float) -> None:
    await until(lambda: asyncio.to_thread(lambda: scrape(server.metrics_port).get(name) == value))


@pytest.mark.parametrize(("reason", "deadline"), [("cancelled", None), ("deadline_exceeded", 2.0)])
async def test_completions_that_do_not_finish_count_with_their_reason(
    tiny_checkpoint: Path, tmp_path: Path, reason: str, deadline: float | None
) -> None:
    async with scripted(tiny_checkpoint, tmp_path, "ready") as (server, channel):
        await server.ready()
        call = await hold(channel, deadline=deadline)
        if deadline is None:
            call.cancel()
        name = f"glimpse_completions_total{{model_name={tiny_checkpoint.name}}}{{reason={reason}}}"
        await until_sample(server, name, 1.0)


VLLM_NAMES = {
    *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "cache_config_info"),
    *("prefix_cache_queries_total", "prefix_cache_hits_total", "num_preemptions_total"),
    *("prompt_tokens_total", "generation_tokens_total", "request_success_total"),
    *("mm_cache_queries_total", "mm_cache_hits_total"),
    *("spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total"),
    *(
        f"{name}_{part}"
        for name in (
            *("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds"),
            *("request_queue_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds"),
            *("request_prompt_tokens", "request_generation_tokens"),
        )
        for part in ("bucket", "count", "sum")
    ),
}
"""What inference gateways, autoscalers and dashboards for vLLM read."""


@pytest.mark.parametrize("names", ["vllm", "both"])
async def test_metrics_have_the_names_that_inference_gateways_read(
    tiny_checkpoint: Path, tmp_path: Path, names: str
) -> None:
    async with scripted(tiny_checkpoint, tmp_path, "ready", metrics_names=names) as (server, channel):
        ready = await server.ready()
        call = await hold(channel)
        model = tiny_checkpoint.name
        await until_sample(server, f"vllm:num_requests_running{{engine=0}}{{model_name={model}}}", 1.0)
        samples = await asyncio.to_thread(scrape, server.metrics_port)
        names_of = {sample.partition("{")[0] for sample in samples}
        assert {name.removeprefix("vllm:") for name in names_of if name.startswith("vllm:")} == VLLM_NAMES
        assert any(name.startswith("glimpse_") for name in names_of) == (names == "both")
        assert samples[f"vllm:time_to_first_token_seconds_count{{engine=0}}{{model_name={model}}}"] == 1.0
        sizes = (
            f"{{block_size={ready.block_size}}}{{engine=0}}{{model_name={model}}}{{num_gpu_blocks={ready.num_blocks}}}"
        )
        assert samples[f"vllm:cache_config_info{sizes}"] == 1.0
        call.cancel()
        name = f"vllm:request_success_total{{engine=0}}{{finished_reason=abort}}{{model_name={model}}}"
        await until_sample(server, name, 1.0)


def test_prefix_cache_hits_are_a_part_of_the_queries(
    chat: chat_pb2_grpc.ChatServiceStub, shared_server: Served
) -> None:
    asked = request(user("Tell me more about the history of this sentence, please. " * 4))
    first = change(shared_server, lambda: chat.CreateChatCompletion(asked))
    again = change(shared_server, lambda: chat.CreateChatCompletion(asked))
    assert first["glimpse_admitted_tokens_total"] == again["glimpse_admitted_tokens_total"]
    assert 0 < again["glimpse_cached_tokens_total"] < again["glimpse_admitted_tokens_total"]


def test_no_series_says_when_a_metric_was_made() -> None:
    samples = [sample.name for metric in Metrics("m").registry.collect() for sample in metric.samples]
    assert samples
    assert not [name for name in samples if name.endswith("_created")]
