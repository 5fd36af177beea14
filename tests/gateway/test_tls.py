"""TLS and mutual TLS of the gateway, to clients and to servers: who is trusted, and certificates that change."""

import asyncio
import shutil
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import grpc
import grpc.aio
import pytest
from google.api.httpbody_pb2 import HttpBody

from glimpse.gateway.cli import app
from glimpse.gateway.config import GatewayOptions
from glimpse.gateway.health import is_serving
from glimpse.gateway.run import Envoy
from glimpse.gateway.tls import UpstreamTls
from glimpse.identity.errors import IdentityConfigError
from glimpse.identity.tls import ListenerTls
from tests.gateway.backend import start_backend
from tests.gateway.conftest import ANY_PORT
from tests.waiting import eventually

FILES = Path(__file__).with_name("certificates")
GATEWAY = ListenerTls(tls_certificate=FILES / "gateway.pem", tls_key=FILES / "gateway.key")
MUTUAL = ListenerTls(
    tls_certificate=FILES / "gateway.pem", tls_key=FILES / "gateway.key", tls_client_ca=FILES / "ca.pem"
)
TO_SERVERS = UpstreamTls(
    upstream_ca=FILES / "ca.pem", upstream_certificate=FILES / "client.pem", upstream_key=FILES / "client.key"
)
CHAT = "/v1/chat/completions"


@pytest.fixture(params=[GATEWAY, MUTUAL], ids=["TLS", "mutual"])
async def gateway(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[ListenerTls, Envoy]]:
    backend = await start_backend()
    async with Envoy(
        GatewayOptions(listen=ANY_PORT, upstream=(backend.address,), tls=request.param), run_dir=tmp_path
    ) as envoy:
        yield request.param, envoy
    await backend.server.stop(0)


def trusting(client: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=FILES / "ca.pem")
    if client is not None:
        context.load_cert_chain(FILES / f"{client}.pem", FILES / f"{client}.key")
    return context


async def ask_over_rest(envoy: Envoy, client: str | None) -> bytes:
    async with (
        aiohttp.ClientSession(envoy.url) as session,
        session.post(CHAT, data=b"hello", ssl=trusting(client)) as answer,
    ):
        return await answer.read()


async def ask_over_grpc(envoy: Envoy, client: str | None) -> bytes:
    key, chain = (None if client is None else (FILES / f"{client}.{end}").read_bytes() for end in ("key", "pem"))
    credentials = grpc.ssl_channel_credentials((FILES / "ca.pem").read_bytes(), key, chain)
    async with grpc.aio.secure_channel(str(envoy.address), credentials) as channel:
        call = channel.stream_stream(
            "/glimpse.openai.v1.OpenAIService/CreateChatCompletion",
            request_serializer=HttpBody.SerializeToString,
            response_deserializer=HttpBody.FromString,
        )
        return b"".join([body.data async for body in call(iter([HttpBody(data=b"hello")]), timeout=10)])


async def test_serves_trusted_clients(gateway: tuple[ListenerTls, Envoy]) -> None:
    tls, envoy = gateway
    assert envoy.url.startswith("https://127.0.0.1:")
    for client in ("client", *([None] if tls.tls_client_ca is None else [])):
        assert await ask_over_rest(envoy, client) == b"hello"
        assert await ask_over_grpc(envoy, client) == b"hello"


async def test_refuses_untrusted_clients(gateway: tuple[ListenerTls, Envoy]) -> None:
    tls, envoy = gateway
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError):
            await session.post(f"http://{envoy.address}{CHAT}", data=b"in plain text")
    for client in () if tls.tls_client_ca is None else (None, "stranger"):
        with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
            await ask_over_rest(envoy, client)
        with pytest.raises(grpc.RpcError):
            await ask_over_grpc(envoy, client)


async def test_takes_a_new_certificate_and_keeps_open_calls(tmp_path: Path) -> None:
    backend = await start_backend()
    certificate, key = tmp_path / "tls.pem", tmp_path / "tls.key"
    own = ListenerTls(tls_certificate=certificate, tls_key=key)

    def move_in(name: str) -> None:
        for path in (certificate, key):
            shutil.copy(FILES / f"{name}{path.suffix}", new := path.with_suffix(".new"))
            new.replace(path)

    def presents(name: str) -> bool:
        presented = ssl.get_server_certificate((envoy.address.host, envoy.address.port), timeout=30)
        return presented.strip() == (FILES / f"{name}.pem").read_text().strip()

    move_in("gateway")
    async with Envoy(GatewayOptions(listen=ANY_PORT, upstream=(backend.address,), tls=own), run_dir=tmp_path) as envoy:
        assert presents("gateway")
        async with aiohttp.ClientSession(envoy.url) as session:
            begun, replaced = asyncio.Event(), asyncio.Event()

            async def body() -> AsyncIterator[bytes]:
                yield b"begun, "
                begun.set()
                await replaced.wait()
                yield b"ended"

            call = asyncio.create_task(session.post(CHAT, data=body(), ssl=trusting(None)))
            await begun.wait()
            move_in("stranger")
            assert await asyncio.to_thread(eventually, lambda: presents("stranger"))
            replaced.set()
            assert await (await call).read() == b"begun, ended"
    await backend.server.stop(0)


@pytest.mark.parametrize(
    ("tls", "status"),
    [
        (TO_SERVERS, 200),
        (replace(TO_SERVERS, upstream_server_name="localhost"), 200),
        (replace(TO_SERVERS, upstream_server_name="elsewhere"), 503),
        (replace(TO_SERVERS, upstream_ca=FILES / "stranger.pem"), 503),
        (UpstreamTls(upstream_ca=FILES / "ca.pem"), 503),
        (UpstreamTls(), 503),
    ],
    ids=["trusted", "by name", "another name", "another CA", "no certificate", "plain text"],
)
async def test_connects_to_servers_with_mutual_tls(tls: UpstreamTls, status: int, tmp_path: Path) -> None:
    pair = (FILES / "gateway.key").read_bytes(), (FILES / "gateway.pem").read_bytes()
    credentials = grpc.ssl_server_credentials([pair], (FILES / "ca.pem").read_bytes(), require_client_auth=True)
    backend = await start_backend(credentials=credentials)
    async with (
        Envoy(
            GatewayOptions(listen=ANY_PORT, upstream=(backend.address,), upstream_tls=tls), run_dir=tmp_path
        ) as envoy,
        aiohttp.ClientSession(envoy.url) as session,
        session.post(CHAT, data=b"hello") as answer,
    ):
        assert answer.status == status
        assert (await answer.read() == b"hello") == (status == 200)
    assert await asyncio.to_thread(is_serving, backend.address, tls) == (status == 200)
    await backend.server.stop(0)


@pytest.mark.parametrize(
    ("tls", "message"),
    [
        (UpstreamTls(upstream_key=FILES / "client.key"), "'--upstream-key': expected together with --upstream-ca"),
        (UpstreamTls(upstream_server_name="a"), "'--upstream-server-name': expected together with --upstream-ca"),
        (replace(TO_SERVERS, upstream_key=None), "'--upstream-certificate' and '--upstream-key': expected both"),
        (replace(TO_SERVERS, upstream_key=FILES / "gateway.key"), "a certificate and its unencrypted private key, got"),
        (replace(TO_SERVERS, upstream_ca=FILES / "none"), "'--upstream-ca': expected a file"),
    ],
)
def test_refuses_wrong_flags_of_upstream_tls(tls: UpstreamTls, message: str) -> None:
    with pytest.raises(IdentityConfigError, match=message):
        tls.check()


def test_written_configuration_names_the_tls_files(tmp_path: Path) -> None:
    files = ["--tls-certificate", str(FILES / "gateway.pem"), "--tls-key", str(FILES / "gateway.key")]
    with pytest.raises(SystemExit):
        app(["config", str(tmp_path), *files])
    assert str(FILES / "gateway.key") in (tmp_path / "listener.secret.json").read_text()
