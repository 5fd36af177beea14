"""Every request that is cut short says so, at each entry point, whatever ends it.

The engine holds each request after its first token. docs/operations.md has the table of endings.
"""

import http.client
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from glimpse.server.media_settings import MediaSettings
from glimpse.v1 import chat_pb2_grpc, load_pb2, load_pb2_grpc, media_pb2, media_pb2_grpc
from tests.e2e.media_host import HOST, MediaHost
from tests.e2e.stack import Stack, children, health_stub, start_scripted_stack
from tests.server.dialects.responses_client import EVENT
from tests.server.requests import request
from tests.server.services.error_details import refusal
from tests.waiting import eventually

STOPPING = "The server is stopping."
ENGINE_UNAVAILABLE = {"message": STOPPING, "type": "server_error", "param": None, "code": "engine_unavailable"}
UPSTREAM_UNAVAILABLE = {
    "message": "The model server is not available.",
    "type": "server_error",
    "param": None,
    "code": "unavailable",
}
"""Envoy's own, when no replica is left."""
HEADERS = {"content-type": "application/json"}


def body(**members: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Go on."}]} | members


def by_url(url: str) -> list[dict[str, Any]]:
    """Messages with an image that the server fetches."""
    return [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]


@contextmanager
def posted(
    stack: Stack, body: dict[str, Any], script: str = "hold", path: str = "/v1/chat/completions"
) -> Generator[http.client.HTTPConnection]:
    """A request that the engine answers by the script."""
    connection = http.client.HTTPConnection("127.0.0.1", stack.http_port, timeout=60)
    headers = HEADERS | {"x-request-id": f"{script}-1"}
    connection.request("POST", path, json.dumps(body), headers)
    with closing(connection):
        yield connection


def rest_unary(stack: Stack, **members: Any) -> Any:
    """The error of a REST request that is answered at once."""
    with posted(stack, body(**members)) as connection, connection.getresponse() as response:
        return response.status, json.load(response)["error"]


def rest_stream(stack: Stack, begun: Callable[[], None]) -> str:
    """The text of a REST stream from its second event on."""
    with posted(stack, body(stream=True)) as connection, connection.getresponse() as response:
        assert response.readline().startswith(b"data: {")
        begun()
        return response.read().decode()


def rest_half_body(stack: Stack, begun: Callable[[], None]) -> Any:
    """The error of a REST request whose body never ends."""
    with socket.create_connection(("127.0.0.1", stack.http_port), timeout=60) as connection:
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        connection.sendall((head + 'content-length: 100000\r\n\r\n{"messages": [').encode())
        time.sleep(0.3)  # only now is the call at the server
        begun()
        with http.client.HTTPResponse(connection) as response:
            response.begin()
            return response.status, json.load(response)["error"]


def grpc_stream(stream: Iterator[Any], begun: Callable[[], None]) -> tuple[grpc.StatusCode, str]:
    """The status with which a stream ends that has begun."""
    next(stream)
    begun()
    return refusal(lambda: list(stream))


def half_an_upload(closed: Callable[[], object]) -> Iterator[media_pb2.UploadMediaRequest]:
    yield media_pb2.UploadMediaRequest(header=media_pb2.UploadHeader(sha256=bytes(32)))
    closed()


class Requests:
    """Requests at each entry point that wait for the server, each in a thread."""

    def __init__(self, stack: Stack, channel: grpc.Channel, slow_url: str) -> None:
        self.stack = stack
        self.num_begun = 0
        self.threads = ThreadPoolExecutor(16)
        chat = chat_pb2_grpc.ChatServiceStub(channel)
        hold = {"metadata": [("x-request-id", "hold-1")], "timeout": 60}
        self.release: Future[None] = Future()
        upload = half_an_upload(self.release.result)
        watch = health_stub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=60)
        reports = load_pb2_grpc.LoadServiceStub(channel).StreamLoadReports(
            load_pb2.StreamLoadReportsRequest(), timeout=60
        )
        self.answers: dict[str, Future[Any]] = {
            "REST stream": self.submit(rest_stream, stack, self.begun),
            "REST unary": self.submit(rest_unary, stack),
            "REST fetch": self.submit(lambda: rest_unary(stack, messages=by_url(slow_url))),
            "REST half body": self.submit(rest_half_body, stack, self.begun),
            "gRPC stream": self.submit(grpc_stream, chat.StreamChatCompletion(request(), **hold), self.begun),
            "gRPC unary": self.submit(refusal, lambda: chat.CreateChatCompletion(request(), **hold)),
            "gRPC upload": self.submit(
                refusal, lambda: media_pb2_grpc.MediaServiceStub(channel).UploadMedia(upload, timeout=60)
            ),
            "health watch": self.submit(grpc_stream, watch, self.begun),
            "load reports": self.submit(grpc_stream, reports, self.begun),
        }

    def submit(self, function: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        return self.threads.submit(function, *arguments)

    def begun(self) -> None:
        self.num_begun += 1

    def are_open(self) -> bool:
        return self.num_begun == 5 and self.stack.metric("glimpse_requests_running") == 7

    def results(self) -> dict[str, Any]:
        """The answers, or the errors of requests that have none."""
        ended = {entry: (future.exception(timeout=60), future) for entry, future in self.answers.items()}
        return {entry: error or future.result() for entry, (error, future) in ended.items()}

    def close(self) -> None:
        self.release.set_result(None)
        self.threads.shutdown()


@pytest.fixture
def stopping_stack(tmp_path: Path, request: pytest.FixtureRequest, media_host: MediaHost) -> Iterator[Stack]:
    """A stack with this time to drain."""
    media = MediaSettings(
        allowed_media_networks=(f"{HOST}/32",),  # pyright: ignore[reportArgumentType] - pydantic parses it
        allowed_media_ports=(media_host.server_port,),
        image_fetch_timeout=60,
    )
    running = start_scripted_stack(tmp_path, "ready", media=media, drain_timeout=request.param)
    yield running
    if running.process.poll() is None:
        running.process.kill()
        running.process.wait()


DRAIN_TIMEOUT_AND_NUMBER_OF_SIGNALS = [pytest.param(0.5, 1, id="drain time-out"), pytest.param(60, 2, id="2nd signal")]


@pytest.mark.parametrize(
    ("stopping_stack", "signals"), DRAIN_TIMEOUT_AND_NUMBER_OF_SIGNALS, indirect=["stopping_stack"]
)
def test_stop_ends_each_open_request_with_its_reason(
    stopping_stack: Stack, signals: int, media_host: MediaHost
) -> None:
    stack = stopping_stack
    with grpc.insecure_channel(stack.target) as channel:
        requests = Requests(stack, channel, media_host.url("/slow"))
        try:
            assert eventually(requests.are_open), requests.num_begun
            stack.process.send_signal(signal.SIGTERM)
            if signals == 2:
                time.sleep(0.3)
                stack.process.send_signal(signal.SIGTERM)
            answers = requests.results()
        finally:
            requests.close()
    last_event = str(answers.pop("REST stream")).strip().rpartition("data: ")[2]
    assert json.loads(last_event) == {"error": ENGINE_UNAVAILABLE}
    # Envoy tries other replicas first, where there are any. A request without an answer is not lost with its server.
    rest = {entry: answers.pop(entry) for entry in list(answers) if entry.startswith("REST")}
    assert rest == dict.fromkeys(rest, (503, UPSTREAM_UNAVAILABLE))
    assert answers == dict.fromkeys(answers, (grpc.StatusCode.UNAVAILABLE, STOPPING))
    assert stack.process.wait(timeout=60) == 0


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def rest_cut(stack: Stack, begun: Callable[[], None]) -> bool:
    """Whether a REST stream ended like a complete one."""
    try:
        rest_stream(stack, begun)
    except (http.client.IncompleteRead, OSError):
        return False
    return True


@pytest.mark.parametrize("stopping_stack", [60], indirect=True)
@pytest.mark.parametrize("victim", ["front end", "Envoy"])
def test_killed_process_ends_each_open_request(stopping_stack: Stack, victim: str) -> None:
    stack, begun = stopping_stack, threading.Semaphore(0)
    with (
        grpc.insecure_channel(stack.target) as channel,
        grpc.insecure_channel(f"127.0.0.1:{stack.http_port}") as envoy_channel,
        ThreadPoolExecutor() as threads,
    ):

        def stream(through: grpc.Channel) -> Future[Any]:
            chat = chat_pb2_grpc.ChatServiceStub(through)
            call = chat.StreamChatCompletion(request(), metadata=[("x-request-id", "hold-1")], timeout=60)
            return threads.submit(grpc_stream, call, begun.release)

        over_grpc, through_envoy = stream(channel), stream(envoy_channel)
        over_rest = threads.submit(rest_cut, stack, begun.release)
        for _ in range(3):
            assert begun.acquire(timeout=60)
        if victim == "Envoy":
            (gateway,) = children(stack.process.pid, "glimpse.gateway")
            (envoy,) = children(gateway, "envoy")
            kill(envoy)
        else:
            kill(stack.process.pid)
        assert not over_rest.result(timeout=60)
        status, details = over_grpc.result(timeout=60)
        status_through_envoy, _ = through_envoy.result(timeout=60)
    assert status is grpc.StatusCode.UNAVAILABLE
    # Envoy can only reset a stream that has begun.
    expected = grpc.StatusCode.UNAVAILABLE if victim == "Envoy" else grpc.StatusCode.INTERNAL
    assert status_through_envoy is expected
    assert (details == STOPPING) == (victim == "Envoy")
    stack.process.wait(timeout=60)


def responses_stream(stack: Stack, begun: Callable[[], None]) -> list[Any]:
    """The events of a stream of the Responses API, by OpenAI's types."""
    asked = {"input": "Go on.", "stream": True}
    with posted(stack, asked, path="/v1/responses") as connection, connection.getresponse() as response:
        first = response.readline()
        begun()
        lines = (first + response.read()).decode().splitlines()
    return [EVENT.validate_json(line[6:], strict=True) for line in lines if line.startswith("data: ")]


@pytest.mark.parametrize("stopping_stack", [60], indirect=True)
def test_engine_s_death_ends_each_open_request_with_its_reason(stopping_stack: Stack, tmp_path: Path) -> None:
    stack, begun = stopping_stack, threading.Semaphore(0)
    with grpc.insecure_channel(stack.target) as channel, ThreadPoolExecutor() as threads:
        chat = chat_pb2_grpc.ChatServiceStub(channel)
        hold: dict[str, Any] = {"metadata": [("x-request-id", "hold-1")], "timeout": 60}
        answers = [
            threads.submit(grpc_stream, chat.StreamChatCompletion(request(), **hold), begun.release),
            threads.submit(refusal, lambda: chat.CreateChatCompletion(request(), **hold)),
        ]
        at_once = threads.submit(rest_unary, stack)
        over_rest = threads.submit(rest_stream, stack, begun.release)
        of_responses = threads.submit(responses_stream, stack, begun.release)
        for _ in range(3):
            assert begun.acquire(timeout=60)
        assert eventually(lambda: stack.metric("glimpse_running_sequences") == 5)
        kill(int((tmp_path / "starts").read_text().split()[0]))
        statuses = [answer.result(timeout=60) for answer in answers]
        last_event = over_rest.result(timeout=60).strip().rpartition("data: ")[2]
        found = of_responses.result(timeout=60)
    message = "the engine exited; retry the request"
    assert statuses == [(grpc.StatusCode.ABORTED, message)] * 2
    died = ENGINE_UNAVAILABLE | {"message": message, "code": "engine_died"}
    assert json.loads(last_event) == {"error": died}
    assert at_once.result(timeout=60) == (503, died), "it is not repeated"
    assert [event.sequence_number for event in found] == list(range(len(found)))
    assert [event.type for event in found[-2:]] == ["response.failed", "error"]
    assert (found[-1].message, found[-1].code, found[-1].error) == (message, "engine_died", died)
