"""TLS and mutual TLS of the gRPC port, and certificates that change while it serves."""

import asyncio
import shutil
import ssl
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from glimpse.client import AsyncClient, GlimpseError, Tls
from glimpse.identity.authentication import AuthenticationOptions
from glimpse.identity.errors import IdentityConfigError
from glimpse.identity.tls import ListenerTls
from glimpse.server.settings import AccessSettings
from glimpse.v1 import chat_pb2_grpc
from tests.paths import ROOT
from tests.server.requests import request
from tests.server.serving import scripted
from tests.waiting import eventually

FILES = ROOT / "tests" / "gateway" / "certificates"
CA = FILES / "ca.pem"
TRUSTED = Tls(ca=CA, certificate=FILES / "client.pem", key=FILES / "client.key")
ANONYMOUS = Tls(ca=CA)
STRANGER = Tls(ca=CA, certificate=FILES / "stranger.pem", key=FILES / "stranger.key")


async def reaches(port: int, tls: Tls | None) -> bool:
    """Whether a client of its own connection reaches the server."""
    async with AsyncClient(f"127.0.0.1:{port}", tls=tls, max_retries=0) as client:
        try:
            return bool(await client.models(timeout=30))
        except GlimpseError as error:
            refused = error.status is grpc.StatusCode.UNAVAILABLE
    assert refused
    return False


@pytest.mark.parametrize("mutual", [False, True])
async def test_serves_those_who_may_connect(tiny_checkpoint: Path, tmp_path: Path, *, mutual: bool) -> None:
    tls = ListenerTls(
        tls_certificate=FILES / "gateway.pem", tls_key=FILES / "gateway.key", tls_client_ca=CA if mutual else None
    )
    async with scripted(tiny_checkpoint, tmp_path, "ready", tls=tls) as (server, _):
        assert await reaches(server.port, TRUSTED)
        assert await reaches(server.port, ANONYMOUS) == (not mutual)
        assert not await reaches(server.port, None)
        assert not await reaches(server.port, Tls())  # trusts public authorities alone
        if mutual:
            assert not await reaches(server.port, STRANGER)


async def test_certificate_names_the_tenant(tiny_checkpoint: Path, tmp_path: Path) -> None:
    tls = ListenerTls(
        tls_certificate=FILES / "gateway.pem", tls_key=FILES / "gateway.key", tls_client_ca=FILES / "tenants-ca.pem"
    )
    access = AccessSettings(authentication=AuthenticationOptions(tenant_from_certificate=True))
    tenant = Tls(ca=CA, certificate=FILES / "tenant.pem", key=FILES / "tenant.key")
    async with scripted(tiny_checkpoint, tmp_path, "ready", access=access, tls=tls) as (server, _):
        await server.ready()
        async with AsyncClient(f"127.0.0.1:{server.port}", tls=tenant, max_retries=0) as client:
            assert await client.models(timeout=30)  # without a key
        assert not await reaches(server.port, ANONYMOUS)


async def test_follows_its_files_and_keeps_open_calls(tiny_checkpoint: Path, tmp_path: Path) -> None:
    certificate, key = tmp_path / "tls.pem", tmp_path / "tls.key"

    def presents(name: str) -> bool:
        presented = ssl.get_server_certificate(("127.0.0.1", server.port), timeout=30)
        return presented.strip() == (FILES / f"{name}.pem").read_text().strip()

    def replace(name: str, *ends: str) -> None:
        for path in (certificate, key):
            if path.suffix.removeprefix(".") in ends:
                shutil.copy(FILES / f"{name}{path.suffix}", new := path.with_suffix(".new"))
                new.replace(path)

    replace("gateway", "pem", "key")
    tls = ListenerTls(tls_certificate=certificate, tls_key=key)
    async with scripted(tiny_checkpoint, tmp_path, "ready", tls=tls) as (server, _):
        await server.ready()
        credentials = grpc.ssl_channel_credentials(CA.read_bytes())
        async with grpc.aio.secure_channel(f"127.0.0.1:{server.port}", credentials) as channel:
            chat: Any = chat_pb2_grpc.ChatServiceStub(channel)
            call = chat.StreamChatCompletion(request(), metadata=[("x-request-id", "hold-1")])
            await call.read()
            assert await asyncio.to_thread(presents, "gateway")
            replace("stranger", "pem")  # not yet with its key
            assert await asyncio.to_thread(presents, "gateway")
            replace("stranger", "key")
            assert await asyncio.to_thread(eventually, lambda: presents("stranger"))
            key.unlink()
            assert await asyncio.to_thread(presents, "stranger")
            assert not call.done()
            call.cancel()


async def test_refuses_files_that_cannot_be_used(tiny_checkpoint: Path, tmp_path: Path) -> None:
    tls = ListenerTls(tls_certificate=FILES / "gateway.pem", tls_key=FILES / "client.key")
    with pytest.raises(IdentityConfigError, match="key values mismatch"):
        async with scripted(tiny_checkpoint, tmp_path, "ready", tls=tls):
            pass
