"""`glimpse up --front-ends 2`: through Envoy, whatever happens to a front end."""

import http.client
import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import openai
import pytest

from tests.e2e.stack import Stack, children, read_metric, start_stack
from tests.media.shared.redis_server import RedisServer
from tests.waiting import eventually

MODULE = "glimpse.server.processes.front_end"
NUM_FRONT_ENDS = 2
NUM_STREAMS = 12


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, running_redis: RedisServer) -> Iterator[Stack]:
    options = (f"--front-ends={NUM_FRONT_ENDS}", f"--media-store={running_redis.url}")
    running = start_stack(tmp_path_factory.mktemp("front-ends"), *options)
    yield running
    running.stop()


def answer(stack: Stack, question: str) -> str:
    with openai.OpenAI(base_url=stack.openai_url, api_key="none", max_retries=0) as client:
        messages: Any = [{"role": "user", "content": question}]
        return (
            client.chat.completions.create(model="nano", messages=messages, max_tokens=4).choices[0].message.content
            or ""
        )


def streamed(stack: Stack, number: int, begun: threading.Barrier) -> bool:
    """Streams a long answer. Returns whether it came whole."""
    body = {
        "messages": [{"role": "user", "content": f"Question {number}: tell me all."}],
        "stream": True,
        "max_tokens": 600,
        "ignore_eos": True,
    }
    with closing(http.client.HTTPConnection("127.0.0.1", stack.http_port, timeout=60)) as connection:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
        with connection.getresponse() as response:
            assert response.status == 200
            assert response.readline().startswith(b"data: {")
            begun.wait(timeout=60)
            try:
                return response.read().endswith(b"data: [DONE]\n\n")
            except (http.client.IncompleteRead, ConnectionError):
                return False


def times_of_models(stack: Stack) -> set[int]:
    """When the models were created, as all front ends tell it."""
    with openai.OpenAI(base_url=stack.openai_url, api_key="none", max_retries=0) as client:
        return {model.created for _ in range(10) for model in client.models.list()}


def front_ends_in_log(stack: Stack) -> set[int]:
    """Numbers of the front ends that have answered requests."""
    lines = [json.loads(line) for line in stack.log.read_text().splitlines() if line.startswith("{")]
    return {line["front_end"] for line in lines if line["event"] == "rpc"}


def test_envoy_spreads_requests_and_metrics_are_summed(stack: Stack) -> None:
    for number in range(10):
        assert answer(stack, f"{number} is a number?")
    assert front_ends_in_log(stack) == set(range(NUM_FRONT_ENDS))
    assert read_metric(stack.metrics_port, "glimpse_requests_total") == 10
    assert read_metric(stack.metrics_port, "glimpse_generated_tokens_total") >= 10


def test_death_of_a_front_end_costs_its_own_streams_and_nothing_else(stack: Stack) -> None:
    begun = threading.Barrier(NUM_STREAMS + 1)
    created = times_of_models(stack)
    victim = children(stack.process.pid, MODULE)[0]
    with ThreadPoolExecutor(NUM_STREAMS) as threads:
        streams = [threads.submit(streamed, stack, number, begun) for number in range(NUM_STREAMS)]
        begun.wait(timeout=60)
        os.kill(victim, signal.SIGKILL)
        whole = [stream.result() for stream in streams]
    assert set(whole) == {True, False}, "each front end had some, and those of the other one came whole"
    for number in range(10):  # while it is being replaced, and after
        assert answer(stack, f"And {number}?")

    def is_replaced() -> bool:
        running = children(stack.process.pid, MODULE)
        return len(running) == NUM_FRONT_ENDS and victim not in running

    assert eventually(is_replaced)
    assert times_of_models(stack) == created, "a new front end serves what the others do"
    assert len(created) == 1
    # The engine has stopped to work for clients that lost their front end.
    assert eventually(lambda: read_metric(stack.metrics_port, "glimpse_running_sequences") == 0)


def test_death_of_the_engine_is_told_to_all(stack: Stack) -> None:
    (engine,) = children(stack.process.pid, "glimpse.engine.worker.process")
    os.kill(engine, signal.SIGKILL)
    assert eventually(lambda: stack.health() == 200 and answers(stack))


def answers(stack: Stack) -> bool:
    try:
        return all(answer(stack, f"Are you back, {number}?") for number in range(6))
    except openai.InternalServerError:
        return False


def test_stop_ends_open_streams_whole(stack: Stack) -> None:
    begun = threading.Barrier(5)
    with ThreadPoolExecutor(4) as threads:
        streams = [threads.submit(streamed, stack, number, begun) for number in range(4)]
        begun.wait(timeout=60)
        stack.process.send_signal(signal.SIGTERM)
        assert all(stream.result() for stream in streams)
    assert stack.process.wait(timeout=60) == 0
    assert not children(stack.process.pid, MODULE)
