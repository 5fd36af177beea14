"""Pings, silent peers and old connections, with hand-written HTTP/2."""

import asyncio
import struct
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from glimpse.gateway.address import Address
from glimpse.gateway.config import GatewayOptions
from glimpse.gateway.run import Envoy
from glimpse.server.lifecycle.connections import (
    MAX_CONCURRENT_STREAMS,
    MAX_PING_STRIKES,
    MIN_PING_INTERVAL_SECONDS,
)
from glimpse.v1 import chat_pb2_grpc, model_pb2, model_pb2_grpc
from tests.e2e.stack import read_metric
from tests.gateway.conftest import ANY_PORT
from tests.http2 import ACK, END_STREAM, GOAWAY, HEADERS, PING, WINDOW_UPDATE
from tests.server.http2 import connected
from tests.server.requests import request
from tests.server.serving import scripted
from tests.waiting import eventually

OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]
NUM_PINGS = 4
PING_SECONDS = 1.1 * MIN_PING_INTERVAL_SECONDS
PINGS = [
    ("grpc.keepalive_time_ms", round(1000 * PING_SECONDS)),
    ("grpc.keepalive_timeout_ms", 60_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
CHAT = "/glimpse.v1.ChatService/CreateChatCompletion"
STREAM_CHAT = "/glimpse.v1.ChatService/StreamChatCompletion"


def ping_as_clients_do(port: int) -> tuple[bool, bytes]:
    """Pings on a connection with a silent call. Returns whether it lives, and the GOAWAY after a flood."""
    with connected(port) as connection:
        connection.call(CHAT, request().SerializeToString(), x_request_id="hold-1")
        # Each but the first comes too soon. A client with an interval of 10 s would need minutes for as many.
        connection.ping(MAX_PING_STRIKES + 1)
        answered = connection.until(PING, flags=ACK, times=MAX_PING_STRIKES + 1)
        time.sleep(MIN_PING_INTERVAL_SECONDS * 1.1)
        connection.ping()  # in time
        lives = answered is not None and connection.until(PING, flags=ACK) is not None
        connection.ping(100)
        goaway = connection.until(GOAWAY)
        return lives, goaway.payload if goaway else b""


async def test_pings_kill_no_call_and_a_flood_only_its_connection(tiny_checkpoint: Path, tmp_path: Path) -> None:
    assert MIN_PING_INTERVAL_SECONDS < 10
    async with scripted(tiny_checkpoint, tmp_path, "ready") as (server, channel):
        await server.ready()
        chat: Any = chat_pb2_grpc.ChatServiceStub(channel)
        other = chat.StreamChatCompletion(request(), metadata=[("x-request-id", "hold-2")])
        await other.read()
        lives, reason = await asyncio.to_thread(ping_as_clients_do, server.port)
        assert lives
        assert reason.endswith(b"too_many_pings")
        assert not other.done()
        other.cancel()


async def test_clients_that_ping_keep_their_calls_and_connections(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """With real clients, direct and through Envoy. gRPC's default would close each connection at the third ping."""
    async with (
        scripted(tiny_checkpoint, tmp_path, "ready") as (server, _),
        Envoy(
            GatewayOptions(listen=ANY_PORT, upstream=(Address(host="127.0.0.1", port=server.port),)), run_dir=tmp_path
        ) as envoy,
        AsyncExitStack() as channels,
    ):
        await server.ready()
        silent: list[Any] = []
        idle: list[asyncio.Task[None]] = []
        for target in (f"127.0.0.1:{server.port}", str(envoy.address)):
            busy, quiet = [
                await channels.enter_async_context(grpc.aio.insecure_channel(target, [*OWN_CONNECTION, *PINGS]))
                for _ in range(2)
            ]
            chat: Any = chat_pb2_grpc.ChatServiceStub(busy)
            silent.append(chat.CreateChatCompletion(request(), metadata=[("x-request-id", f"hold-{len(silent)}")]))
            models: Any = model_pb2_grpc.ModelServiceStub(quiet)
            await models.ListModels(model_pb2.ListModelsRequest(), wait_for_ready=True)
            idle.append(asyncio.create_task(quiet.wait_for_state_change(grpc.ChannelConnectivity.READY)))
        done, _ = await asyncio.wait([*map(asyncio.ensure_future, silent), *idle], timeout=NUM_PINGS * PING_SECONDS)
        assert not done
        for each in (*silent, *idle):
            each.cancel()


async def test_request_of_a_peer_that_vanished_ends(tiny_checkpoint: Path, tmp_path: Path) -> None:
    async with scripted(tiny_checkpoint, tmp_path, "ready", keepalive_time=1) as (server, _):
        await server.ready()
        running = partial(read_metric, server.metrics_port, "glimpse_running_sequences")
        with connected(server.port) as silent:
            silent.call(CHAT, request().SerializeToString(), x_request_id="hold-1")
            assert await asyncio.to_thread(eventually, lambda: running() == 1)
            assert await asyncio.to_thread(eventually, lambda: running() == 0)


async def test_closes_connections_over_the_limit_and_idle_ones(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glimpse.server.lifecycle.connections.max_connections", lambda: 2)
    monkeypatch.setattr("glimpse.server.lifecycle.connections.MAX_IDLE_SECONDS", 1.0)

    def connect(port: int) -> bool:
        """Returns whether the server answers."""
        try:
            with connected(port) as connection:
                connection.ping()
                return connection.until(PING, flags=ACK) is not None and connection.until(GOAWAY) is not None
        except OSError:  # it was closed while this sent
            return False

    async with scripted(tiny_checkpoint, tmp_path, "ready") as (server, _):
        await server.ready()
        served = await asyncio.gather(*(asyncio.to_thread(connect, server.port) for _ in range(4)))
        assert sorted(served) == [False, False, True, True]
        assert await asyncio.to_thread(connect, server.port)


async def test_response_that_is_not_read_ends_and_frees_its_sequence(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glimpse.server.rpc.stopping.MAX_UNREAD_SECONDS", 0.6)
    async with scripted(tiny_checkpoint, tmp_path, "ready") as (server, _):
        await server.ready()
        running = partial(read_metric, server.metrics_port, "glimpse_running_sequences")

        def read_nothing_for_a_while() -> bytes:
            with connected(server.port, window=0) as connection:
                connection.call(STREAM_CHAT, request().SerializeToString(), x_request_id="hold-1")
                assert eventually(lambda: running() == 1)
                assert eventually(lambda: running() == 0)
                connection.send(WINDOW_UPDATE, struct.pack(">I", 1 << 20), stream=1)
                trailers = connection.until(HEADERS, flags=END_STREAM)
                return trailers.payload if trailers else b""

        assert b"expected a client that reads it" in await asyncio.to_thread(read_nothing_for_a_while)


@pytest.mark.parametrize("age", [None, 1.0])
async def test_old_connections_end_after_their_calls(tiny_checkpoint: Path, tmp_path: Path, age: float | None) -> None:
    async with scripted(tiny_checkpoint, tmp_path, "ready", max_connection_age=age) as (server, channel):
        await server.ready()
        chat: Any = chat_pb2_grpc.ChatServiceStub(channel)
        long = chat.StreamChatCompletion(request(), metadata=[("x-request-id", "hold-1")], timeout=4)
        await long.read()
        with connected(server.port) as connection:
            connection.ping()
            goaway = asyncio.create_task(asyncio.to_thread(connection.until, GOAWAY))
            done, _ = await asyncio.wait([goaway], timeout=2.5 if age is None else 20)
            assert bool(done) == (age is not None)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await long.read()
            # Neither age nor its lack ended the call on the other connection before its time.
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            if age is None:
                await server.stop(grace_seconds=0)
            await goaway


async def test_further_calls_of_a_connection_wait_at_the_client(tiny_checkpoint: Path, tmp_path: Path) -> None:
    async with scripted(tiny_checkpoint, tmp_path, "ready") as (server, channel):
        await server.ready()
        chat: Any = chat_pb2_grpc.ChatServiceStub(channel)
        count = MAX_CONCURRENT_STREAMS + 20
        calls = [chat.StreamChatCompletion(request(), metadata=[("x-request-id", f"hold-{i}")]) for i in range(count)]
        firsts = {asyncio.create_task(call.read()): call for call in calls}
        pending = set(firsts)
        while len(pending) > count - MAX_CONCURRENT_STREAMS:
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=OWN_CONNECTION) as other:
            models: Any = model_pb2_grpc.ModelServiceStub(other)
            await models.ListModels(model_pb2.ListModelsRequest())
        running = await asyncio.to_thread(read_metric, server.metrics_port, "glimpse_running_sequences")
        assert (running, len(pending)) == (MAX_CONCURRENT_STREAMS, count - MAX_CONCURRENT_STREAMS)
        for first in firsts.keys() - pending:
            firsts[first].cancel()
        await asyncio.gather(*pending)
        for first in pending:
            firsts[first].cancel()
