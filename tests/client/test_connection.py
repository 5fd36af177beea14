"""Deadlines, retries, cancellation, targets and TLS."""

import asyncio
import os
import signal
import socket
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from glimpse import Client
from glimpse.client import GlimpseError, Tls
from glimpse.gateway.address import Address
from glimpse.gateway.config import GatewayOptions
from glimpse.gateway.run import Envoy
from glimpse.identity.tls import ListenerTls
from glimpse.v1 import model_pb2
from tests.client.harness import opened
from tests.e2e.stack import read_metric
from tests.gateway.backend import start_backend, vanishing
from tests.gateway.conftest import ANY_PORT
from tests.paths import ROOT
from tests.server.serving import scripted
from tests.waiting import eventually

CERTIFICATES = ROOT / "tests" / "gateway" / "certificates"


async def test_deadline_ends_a_stream_after_its_chunks(tiny_checkpoint: Path, tmp_path: Path, kind: str) -> None:
    async with scripted(tiny_checkpoint, tmp_path, "ready") as (server, _):
        await server.ready()
        async with opened(kind, f"127.0.0.1:{server.port}") as client:
            chunks = client.stream("Hello", timeout=2, request_id="hold-1")
            assert (await anext(chunks)).text
            with pytest.raises(GlimpseError) as caught:
                await anext(chunks)
    assert caught.value.status is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_client_s_timeout_is_the_default_deadline(tiny_checkpoint: Path, tmp_path: Path, kind: str) -> None:
    async with scripted(tiny_checkpoint, tmp_path, "ready") as (server, _):
        await server.ready()
        async with opened(kind, f"127.0.0.1:{server.port}", timeout=0.5) as client:
            with pytest.raises(GlimpseError) as caught:
                await client.chat("Hello", request_id="hold-1")
    assert caught.value.status is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_calls_to_a_server_that_vanishes_end(
    tiny_checkpoint: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glimpse.client.channel._PING_MILLISECONDS", 1000)
    async with scripted(tiny_checkpoint, tmp_path, "ready") as (server, _):
        await server.ready()
        async with (
            vanishing(Address(host="127.0.0.1", port=server.port)) as (address, gone),
            opened(kind, str(address), timeout=60) as client,
        ):
            chunks = client.stream("Hello", request_id="hold-1")
            assert (await anext(chunks)).text
            gone.set()
            with pytest.raises(GlimpseError) as caught:
                await anext(chunks)
    assert caught.value.status is grpc.StatusCode.UNAVAILABLE


async def test_waits_while_the_model_loads(tiny_checkpoint: Path, tmp_path: Path, kind: str) -> None:
    told: list[str] = []

    def tell(message: str) -> None:
        told.append(message)
        (tmp_path / "go").touch()

    async with scripted(tiny_checkpoint, tmp_path, f"until {tmp_path / 'go'}") as (server, _):
        target = f"127.0.0.1:{server.port}"
        async with opened(kind, target, max_retries=0, wait_until_ready=False) as client:
            with pytest.raises(GlimpseError, match="The model is still loading") as refused:
                await client.chat("Hello")
        async with opened(kind, target, max_retries=0, wait_until_ready=tell) as client:
            with pytest.raises(GlimpseError) as late:  # no second attempt before the deadline
                await client.chat("Hello", timeout=0.5)
            assert not told
            chunks = [chunk async for chunk in client.stream("Hello", request_id="echo-1")]
            assert (await client.chat("Hello", request_id="echo-2")).finish_reason == "stop"
    assert refused.value.reason == late.value.reason == "model_loading"
    assert chunks[-2].finish_reason == "stop"
    assert set(told) <= {"The model is still loading.", "The model is still loading: reading the script."}


async def test_retries_while_the_engine_restarts_but_not_what_it_died_of(
    tiny_checkpoint: Path, tmp_path: Path, kind: str
) -> None:
    ends = {
        "garble": (grpc.StatusCode.ABORTED, "engine_died"),
        "echo": (grpc.StatusCode.UNAVAILABLE, "engine_unavailable"),
    }
    async with scripted(tiny_checkpoint, tmp_path, "ready") as (server, _):
        await server.ready()
        for (script, end), max_retries in zip(ends.items(), (4, 0), strict=True):
            async with opened(kind, f"127.0.0.1:{server.port}", max_retries=max_retries) as client:
                with pytest.raises(GlimpseError) as caught:
                    await client.chat("Hello", request_id=f"{script}-1")
            assert (caught.value.status, caught.value.reason) == end
            assert (caught.value.retry_after_seconds or 0) >= 1
        async with opened(kind, f"127.0.0.1:{server.port}", max_retries=4) as client:
            completion = await client.chat("Hello", request_id="echo-1")
    assert completion.finish_reason == "stop"


async def test_a_full_queue_says_when_to_retry(tiny_checkpoint: Path, tmp_path: Path, kind: str) -> None:
    async with scripted(tiny_checkpoint, tmp_path, "ready") as (server, _):
        await server.ready()
        async with opened(kind, f"127.0.0.1:{server.port}", max_retries=0) as client:
            with pytest.raises(GlimpseError, match="retry in 7 s") as caught:
                await client.chat("Hello", request_id="full-1")
    assert (caught.value.reason, caught.value.retry_after_seconds) == ("overloaded", 7)


async def test_retries_a_call_that_the_server_cancels(kind: str) -> None:
    """gRPC cancels calls that arrive while the server closes its port."""
    num_calls = 0

    async def list_models(_: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]") -> bytes:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 1:
            await context.abort(grpc.StatusCode.CANCELLED, "CANCELLED")
        return model_pb2.ListModelsResponse(data=[model_pb2.Model(id="m")]).SerializeToString()

    server = grpc.aio.server()
    methods = {"ListModels": grpc.unary_unary_rpc_method_handler(list_models)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("glimpse.v1.ModelService", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with opened(kind, f"127.0.0.1:{port}", max_retries=1) as client:
        assert [model.id for model in await client.models()] == ["m"]
    assert num_calls == 2
    await server.stop(None)


async def test_a_begun_stream_is_not_retried(tiny_checkpoint: Path, tmp_path: Path, kind: str) -> None:
    async with scripted(tiny_checkpoint, tmp_path, "ready") as (server, _):
        await server.ready()
        async with opened(kind, f"127.0.0.1:{server.port}", max_retries=4) as client:
            chunks = client.stream("Hello", request_id="hold-1")
            assert (await anext(chunks)).text
            os.kill(int((tmp_path / "starts").read_text()), signal.SIGKILL)
            with pytest.raises(GlimpseError) as caught:
                await anext(chunks)
    assert (caught.value.status, caught.value.reason) == (grpc.StatusCode.ABORTED, "engine_died")


async def test_closing_a_stream_cancels_the_request(tiny_checkpoint: Path, tmp_path: Path) -> None:
    async with scripted(tiny_checkpoint, tmp_path, "ready") as (server, _):
        await server.ready()
        async with opened("async", f"127.0.0.1:{server.port}") as client:
            chunks = client.stream("Hello", request_id="hold-1")
            await anext(chunks)
            assert read_metric(server.metrics_port, "glimpse_running_sequences") == 1
            await chunks.aclose()
            is_free = partial(eventually, lambda: read_metric(server.metrics_port, "glimpse_running_sequences") == 0)
            assert await asyncio.to_thread(is_free)


async def test_unreachable_server_is_unavailable(kind: str) -> None:
    async with opened(kind, "127.0.0.1:1", max_retries=0) as client:
        with pytest.raises(GlimpseError) as caught:
            await client.models()
    assert (caught.value.status, caught.value.reason) == (grpc.StatusCode.UNAVAILABLE, "")
    assert caught.value.message.startswith(
        "Is the server running? `glimpse up` starts one. No answer from 127.0.0.1:1: "
    )


def test_a_port_without_grpc_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, Client(f"127.0.0.1:{server.getsockname()[1]}") as client:
        threading.Thread(target=_answer_http, args=(server,), daemon=True).start()
        with pytest.raises(GlimpseError, match=r"127\.0\.0\.1:\d+ does not speak gRPC: give the server's gRPC port"):
            client.models(timeout=30)


def _answer_http(server: socket.socket) -> None:
    """Answers until the server is closed."""
    with suppress(OSError):
        while True:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")


@pytest.mark.parametrize("target", ["http://127.0.0.1:50051", "https://example.com/v1"])
def test_a_url_is_not_a_target(target: str) -> None:
    with pytest.raises(ValueError, match="'target': expected HOST:PORT"):
        Client(target)


def test_max_retries_has_a_range() -> None:
    with pytest.raises(ValueError, match="'max_retries': expected a number from 0 to 4, got 5"):
        Client(max_retries=5)


async def test_calls_the_gateway_over_tls(kind: str, tmp_path: Path) -> None:
    backend = await start_backend()
    ca, certificate, key = (CERTIFICATES / name for name in ("ca.pem", "client.pem", "client.key"))
    server = ListenerTls(
        tls_certificate=CERTIFICATES / "gateway.pem", tls_key=CERTIFICATES / "gateway.key", tls_client_ca=ca
    )
    security: list[dict[str, Any]] = [
        {"tls": Tls(ca=ca, certificate=str(certificate), key=str(key))},
        {"tls": Tls(ca=ca, certificate=certificate, key=key, server_name="localhost")},
        {"credentials": grpc.ssl_channel_credentials(ca.read_bytes(), key.read_bytes(), certificate.read_bytes())},
    ]
    async with Envoy(
        GatewayOptions(listen=ANY_PORT, upstream=(backend.address,), tls=server), run_dir=tmp_path
    ) as envoy:
        for each in security:
            async with opened(kind, str(envoy.address), **each) as client:
                assert (await client.count_tokens("Hello")).prompt_tokens == 7
        for tls in (Tls(ca=ca), Tls(ca=ca, certificate=certificate, key=key, server_name="elsewhere")):
            async with opened(kind, str(envoy.address), tls=tls, max_retries=0) as client:
                with pytest.raises(GlimpseError):
                    await client.count_tokens("Hello")
    await backend.server.stop(0)


def test_incomplete_tls_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'tls\.key': expected a file, got None"):
        Client(tls=Tls(certificate="client.pem"))
    with pytest.raises(ValueError, match="'tls': expected None beside 'credentials'"):
        Client(tls=Tls(), credentials=grpc.ssl_channel_credentials())
    with pytest.raises(OSError, match="none"):
        Client(tls=Tls(ca="/none"))
