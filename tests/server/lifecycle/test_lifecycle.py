"""Requests while the server loads and drains, when its engine dies, and when their client leaves."""

import asyncio
import re
import signal
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2

from glimpse.engine.client import supervisor
from glimpse.engine.errors import CheckpointError
from glimpse.server.rpc.context import GRACE_HEADER
from glimpse.v1 import chat_pb2_grpc
from tests.e2e.stack import Served, health_stub, read_metric
from tests.server.requests import request
from tests.server.serving import scripted, served
from tests.waiting import eventually

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
ENDLESS = {"ignore_eos": True, "max_completion_tokens": 3000}


async def health(channel: grpc.aio.Channel) -> int:
    return (await health_stub(channel).Check(health_pb2.HealthCheckRequest(service="glimpse.v1.ChatService"))).status


def ask(channel: grpc.aio.Channel, script: str, *metadata: tuple[str, str], **options: Any) -> Any:
    """A stream from the scripted engine, which follows the request's id."""
    chat: Any = chat_pb2_grpc.ChatServiceStub(channel)
    return chat.StreamChatCompletion(request(), metadata=[("x-request-id", f"{script}-1"), *metadata], **options)


async def test_requests_are_unavailable_while_the_model_loads(tiny_checkpoint: Path, tmp_path: Path) -> None:
    async with scripted(tiny_checkpoint, tmp_path, "hangs") as (_, channel):
        assert await health(channel) == NOT_SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask(channel, "echo").read()
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert re.fullmatch(r"The model is still loading(: reading the script)?\.", caught.value.details() or "")
    assert dict(caught.value.trailing_metadata())["retry-after"] == "1"


async def test_raises_for_a_checkpoint_that_cannot_be_served(tiny_checkpoint: Path, tmp_path: Path) -> None:
    async with scripted(tiny_checkpoint, tmp_path, "failed") as (server, channel):
        with pytest.raises(CheckpointError, match="the script says that it fails"):
            await server.ready()
        assert await health(channel) == NOT_SERVING


async def test_health_follows_the_engine(tiny_checkpoint: Path, tmp_path: Path) -> None:
    async with scripted(tiny_checkpoint, tmp_path, "ready", "hangs") as (server, channel):
        await server.ready()
        watch = health_stub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask(channel, "garble").read()
        assert caught.value.code() == grpc.StatusCode.ABORTED
        assert (await watch.read()).status == NOT_SERVING
        watch.cancel()


async def test_health_follows_a_step_that_does_not_end(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "MIN_STALL_SHARE", 0.001)
    monkeypatch.setattr(supervisor, "MAX_STALL_SHARE", 0.001)
    async with scripted(tiny_checkpoint, tmp_path, "ready") as (server, channel):
        await server.ready()
        watch = health_stub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == SERVING
        held = ask(channel, "hold")
        await held.read()
        assert (await watch.read()).status == NOT_SERVING
        metrics = [read_metric(server.metrics_port, f"glimpse_engine_{name}") for name in ("ready", "stalls_total")]
        assert metrics == [0, 1]
        assert (await ask(channel, "echo").read()).choices, "it is asked all the same"
        assert (await watch.read()).status == SERVING
        for call in (held, watch):
            call.cancel()


async def test_cancels_the_request_of_a_client_that_leaves(tiny_checkpoint: Path, tmp_path: Path) -> None:
    async with scripted(tiny_checkpoint, tmp_path, "ready") as (server, channel):
        await server.ready()
        call = ask(channel, "hold")
        await call.read()
        assert read_metric(server.metrics_port, "glimpse_running_sequences") == 1
        call.cancel()
        is_free = partial(eventually, lambda: read_metric(server.metrics_port, "glimpse_running_sequences") == 0)
        assert await asyncio.to_thread(is_free)


async def test_deadline_ends_a_request_with_its_reason(tiny_checkpoint: Path, tmp_path: Path) -> None:
    async with scripted(tiny_checkpoint, tmp_path, "ready") as (server, channel):
        await server.ready()
        call = ask(channel, "hold", (GRACE_HEADER, "30"), timeout=32)
        await call.read()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        # The server's own message: it ends the request before gRPC does.
        assert caught.value.details() == "The deadline passed before the response was complete."


async def test_drain_lets_running_requests_finish(tiny_checkpoint: Path, tmp_path: Path) -> None:
    async with scripted(tiny_checkpoint, tmp_path, "ready") as (server, channel):
        await server.ready()
        held = ask(channel, "hold", timeout=2)
        await held.read()
        watch = health_stub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == SERVING
        stopping = asyncio.create_task(server.stop(grace_seconds=1000))
        assert (await watch.read()).status == NOT_SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await held.read()
        # The request ended by its own deadline. Streams that watch health do not delay the stop.
        assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        await stopping


async def test_stop_ends_requests_after_the_grace_period(tiny_checkpoint: Path, tmp_path: Path) -> None:
    async with scripted(tiny_checkpoint, tmp_path, "ready") as (server, channel):
        await server.ready()
        held = ask(channel, "hold")
        await held.read()
        await server.stop(grace_seconds=0.1)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await held.read()
        assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


def test_restarts_a_killed_engine_and_drains_on_sigterm(tiny_checkpoint: Path, tmp_path: Path) -> None:
    with served(tiny_checkpoint, tmp_path, "--drain-delay=0.2") as server, server.channel() as channel:
        chat = chat_pb2_grpc.ChatServiceStub(channel)
        call = chat.StreamChatCompletion(request(**ENDLESS))
        next(call)
        server.kill_engine()
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
        error: Any = caught.value
        assert error.code() == grpc.StatusCode.ABORTED
        assert eventually(lambda: not server.is_serving())
        assert eventually(server.is_serving)
        assert server.metric("glimpse_engine_restarts_total") == 1

        stream = chat.StreamChatCompletion(request(ignore_eos=True, max_completion_tokens=60))
        next(stream)
        server.process.send_signal(signal.SIGTERM)
        *_, last = stream
        assert last.choices[0].HasField("finish_reason")
        assert server.process.wait(timeout=30) == 0


def test_cancellation_frees_the_engine(chat: chat_pb2_grpc.ChatServiceStub, shared_server: Served) -> None:
    call: Any = chat.StreamChatCompletion(request(**ENDLESS))
    next(call)
    assert shared_server.metric("glimpse_running_sequences") == 1
    call.cancel()
    assert eventually(lambda: shared_server.metric("glimpse_running_sequences") == 0)
    assert shared_server.metric("glimpse_kv_blocks_used") == 0
