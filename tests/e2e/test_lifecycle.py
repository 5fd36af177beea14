"""Requests when a client disconnects, when the engine dies and when the server stops."""

import http.client
import json
import os
import signal
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from glimpse.v1 import chat_pb2, chat_pb2_grpc, content_pb2, generation_pb2
from tests.e2e.stack import Stack, children, start_stack
from tests.waiting import eventually

ENDLESS: dict[str, Any] = {"ignore_eos": True, "temperature": 0, "max_completion_tokens": 1500}


@contextmanager
def open_stream(stack: Stack, **options: Any) -> Generator[http.client.HTTPResponse]:
    """A long answer over SSE, after its first event. Leaving the block closes the connection."""
    connection = http.client.HTTPConnection("127.0.0.1", stack.http_port, timeout=60)
    body = {"messages": [{"role": "user", "content": "Go on."}], "stream": True} | ENDLESS | options
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    with connection.getresponse() as response:
        assert response.status == 200
        assert response.readline().startswith(b"data: {")
        yield response
    connection.close()


def typed_request(**options: Any) -> chat_pb2.CreateChatCompletionRequest:
    return chat_pb2.CreateChatCompletionRequest(
        messages=[content_pb2.Message(role=content_pb2.ROLE_USER, content=[content_pb2.ContentPart(text="Go on.")])],
        generation=generation_pb2.GenerationOptions(**ENDLESS | options),
    )


@pytest.fixture
def own_stack(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stack]:
    """A stack that the test may break, with a spare engine or without."""
    running = start_stack(tmp_path, "--dtype=float32", spare_engine=request.param)
    yield running
    if running.process.poll() is None:
        running.process.kill()
        running.process.wait()


def test_disconnected_client_frees_its_sequence(stack: Stack) -> None:
    with open_stream(stack):
        assert stack.metric("glimpse_running_sequences") == 1
    assert eventually(lambda: stack.metric("glimpse_running_sequences") == 0)
    assert stack.metric("glimpse_kv_blocks_used") == 0


def test_the_gateway_shares_processors_with_the_server_and_is_not_reached_by_its_ctrl_c(stack: Stack) -> None:
    (gateway,) = children(stack.process.pid, "gateway run")
    (envoy,) = children(gateway, "envoy")
    for pid in (gateway, envoy):
        assert os.getsid(pid) == os.getsid(stack.process.pid)  # Linux may share processors between sessions
        assert os.getpgid(pid) != os.getpgid(stack.process.pid)


def test_deadline_stops_generation(stack: Stack) -> None:
    with grpc.insecure_channel(stack.target) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            chat_pb2_grpc.ChatServiceStub(channel).CreateChatCompletion(typed_request(), timeout=0.5)
        assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert eventually(lambda: stack.metric("glimpse_running_sequences") == 0)


@pytest.mark.parametrize("own_stack", [True], indirect=True, ids=["spare"])
def test_engine_crash_ends_requests_and_restarts_it(own_stack: Stack) -> None:
    stack = own_stack
    with open_stream(stack) as response, grpc.insecure_channel(stack.target) as channel:
        chat = chat_pb2_grpc.ChatServiceStub(channel)
        typed = chat.StreamChatCompletion(typed_request())
        next(typed)
        stack.kill_engine()
        with pytest.raises(grpc.RpcError) as caught:
            for _ in typed:
                pass
        assert caught.value.code() == grpc.StatusCode.ABORTED
        rest = response.read().decode()
        assert '"error"' in rest
        assert "[DONE]" not in rest
        # The spare engine may serve before the gateway has noticed that there was none.
        assert eventually(lambda: stack.metric("glimpse_engine_restarts_total") == 1)
        assert eventually(lambda: stack.metric("glimpse_engine_ready") == 1)
        assert eventually(lambda: stack.health() == 200)
        assert chat.CreateChatCompletion(typed_request(max_completion_tokens=3)).usage.completion_tokens == 3


@pytest.mark.parametrize("own_stack", [False], indirect=True, ids=["no spare"])
def test_drain_finishes_running_streams(own_stack: Stack) -> None:
    with open_stream(own_stack, max_completion_tokens=300) as response:
        own_stack.process.send_signal(signal.SIGTERM)
        rest = response.read().decode()
    assert rest.rstrip().endswith("data: [DONE]")
    assert own_stack.process.wait(timeout=60) == 0


@pytest.mark.parametrize("own_stack", [False], indirect=True, ids=["no spare"])
def test_a_closed_terminal_lets_running_streams_finish(own_stack: Stack) -> None:
    """A terminal sends SIGHUP to the whole process group, and its shell does too."""
    process = own_stack.process
    with open_stream(own_stack, max_completion_tokens=300) as response:
        group = [process.pid, *children(process.pid, "glimpse.engine.worker.process")]
        for _ in range(2):
            for each in group:
                os.kill(each, signal.SIGHUP)
            assert eventually(lambda: "stopping after SIGHUP" in own_stack.log.read_text())
        rest = response.read().decode()
    assert rest.rstrip().endswith("data: [DONE]")
    assert process.wait(timeout=60) == 0
