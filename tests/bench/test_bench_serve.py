"""The load generator against a real server and gateway whose engine computes nothing."""

import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from bench.serving.clients import make_client
from bench.serving.load_generator import closed_loop
from bench.serving.processes import cpu_seconds, peak_rss_mib
from bench.serving.report import text_report
from bench.serving.serve import measure, parse
from bench.serving.workloads import Question
from glimpse.engine.checkpoint.location import DEFAULT_MODEL
from glimpse.native.process_table import family
from glimpse.server.lifecycle.build_server import start_server
from glimpse.server.lifecycle.served_checkpoint import find_checkpoint
from glimpse.server.processes.gateway_child import start_gateway
from glimpse.server.settings import EngineSettings, ListenSettings, Settings
from tests.e2e.stack import free_ports
from tests.engine.client.scripted import scripted_command

STEP_MS = 25


@pytest.fixture
async def protocols() -> AsyncGenerator[dict[str, str]]:
    """The addresses of a running server, by protocol."""
    (http_port,) = free_ports(1)
    settings = Settings(engine=EngineSettings(), listen=ListenSettings(port=0, metrics_port=0))
    server = await start_server(
        settings,
        find_checkpoint(settings.engine),
        on_loading=lambda _: None,
        engine_command=scripted_command("counts", step_ms=STEP_MS),
    )
    gateway = await start_gateway(
        listen=f"127.0.0.1:{http_port}", upstreams=[f"127.0.0.1:{server.port}"], drain_seconds=1
    )
    try:
        await server.ready()
        await gateway.ready()
        yield {"REST": f"http://127.0.0.1:{http_port}/v1", "gRPC": f"grpc://127.0.0.1:{server.port}"}
    finally:
        await gateway.stop()
        await server.stop(grace_seconds=0)


async def test_both_protocols_are_measured(protocols: dict[str, str]) -> None:
    for url in protocols.values():
        words = [f"--url={url}", f"--model={DEFAULT_MODEL.name}", f"--pid={os.getpid()}", "--seed=1"]
        report = await measure(parse([*words, "--concurrency=3", "--sessions=5", "--output-tokens=6"]))
        assert not report.failures
        assert report.output_tokens == 30
        # The engine takes a step for each token. How many of them a busy client receives at once is not its doing.
        text = report.latencies["text"]
        assert text.answers == 5
        assert text.ttft_p50_ms + 5 * text.tpot_p50_ms >= 5 * STEP_MS
        assert report.server is not None
        assert "text" in text_report(report)


async def test_sessions_arrive_at_random_and_talk_on(protocols: dict[str, str]) -> None:
    words = [f"--url={protocols['gRPC']}", f"--model={DEFAULT_MODEL.name}", "--workload=chat", "--turns=3", "--side=56"]
    report = await measure(parse([*words, "--rate=50", "--sessions=4", "--output-tokens=3"]))
    assert not report.failures
    assert {label: each.answers for label, each in report.latencies.items()} == {"first turn": 4, "later turns": 8}
    first, later = report.latencies.values()
    assert later.prompt_tokens > first.prompt_tokens


async def test_a_refusal_is_a_failure_and_not_an_answer(protocols: dict[str, str]) -> None:
    sessions = [(Question(label="text", text="Hello"),)] * 2
    for url in protocols.values():
        async with make_client(url, model="nobody's", ignore_eos=True) as client:
            gathered = await closed_loop(client, sessions, concurrency=1, max_tokens=2, on_answer=lambda: None)
        assert gathered.answers == []
        assert len(gathered.failures) == 2
        assert "nobody's" in gathered.failures[0]


def test_a_process_knows_what_it_used(tmp_path: Path) -> None:
    own = family(os.getpid())
    assert own[0] == os.getpid()
    before = cpu_seconds(own)
    while cpu_seconds(own) == before:
        (tmp_path / "busy").write_bytes(bytes(1000))
    assert peak_rss_mib(own) > 10
    assert family(2**22 + 1) == []
