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
from glimpse.server.lifecycle.tls import TlsError, TlsFiles, server_credentials
from glimpse.server.settings import AccessSettings
from glimpse.v1 import chat_pb2_grpc
from tests.e2e.stack import eventually
from tests.paths import ROOT
from tests.server.requests import request
from tests.server.serving import scripted

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
    files: dict[str, Any] = {"tls_certificate": FILES / "gateway.pem", "tls_key": FILES / "gateway.key"}
    files |= {"tls_client_ca": CA} if mutual else {}
    async with scripted(tiny_checkpoint, tmp_path, "ready", **files) as (server, _):
        assert await reaches(server.port, TRUSTED)
        assert await reaches(server.port, ANONYMOUS) == (not mutual)
        assert not await reaches(server.port, None)
        assert not await reaches(server.port, Tls())  # trusts public authorities alone
        if mutual:
            assert not await reaches(server.port, STRANGER)


async def test_certificate_names_the_tenant(tiny_checkpoint: Path, tmp_path: Path) -> None:
    files: dict[str, Any] = {"tls_certificate": FILES / "gateway.pem", "tls_key": FILES / "gateway.key"}
    access = AccessSettings(authentication=AuthenticationOptions(tenant_from_certificate=True))
    tenant = Tls(ca=CA, certificate=FILES / "tenant.pem", key=FILES / "tenant.key")
    async with scripted(
        tiny_checkpoint, tmp_path, "ready", access=access, tls_client_ca=FILES / "tenants-ca.pem", **files
    ) as (server, _):
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
    files = {"tls_certificate": certificate, "tls_key": key}
    async with scripted(tiny_checkpoint, tmp_path, "ready", **files) as (server, _):
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
            assert await asyncio.to_thread(eventually, lambda: presents("stranger"), timeout_seconds=30)
            key.unlink()
            assert await asyncio.to_thread(presents, "stranger")
            assert not call.done()
            call.cancel()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"certificate": FILES / "gateway.key"},
            "'--tls-certificate': expected a PEM file with certificates, got '.*key'",
        ),
        ({"key": FILES / "client.key"}, "'--tls-key': .* private key of .*gateway.pem, got .*: key values mismatch"),
        ({"key": FILES / "none.key"}, "'--tls-key': .*No such file"),
        ({"client_ca": FILES / "gateway.key"}, "'--tls-client-ca': expected a PEM file with certificates"),
        ({"client_ca": FILES}, "'--tls-client-ca': .*Is a directory"),
    ],
)
def test_refuses_files_that_cannot_be_used(changed: dict[str, Path], message: str) -> None:
    files: dict[str, Any] = {"certificate": FILES / "gateway.pem", "key": FILES / "gateway.key", "client_ca": None}
    with pytest.raises(TlsError, match=message):
        server_credentials(TlsFiles(**files | changed))


def test_refuses_an_encrypted_key_without_asking_for_its_password(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(ENCRYPTED_KEY)
    with pytest.raises(TlsError, match="unencrypted private key"):
        server_credentials(TlsFiles(certificate=FILES / "gateway.pem", key=tmp_path / "key", client_ca=None))


ENCRYPTED_KEY = """-----BEGIN ENCRYPTED PRIVATE KEY-----
MIGbMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAhGAwG7EGFODQICCAAw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEEC1F7XAQqBTQZHHU52uVd8EQPXZ
xEO4aXeXSnbEboCjw7ziUQ4ZU0/jxOPNAm0WrWwSsJkY5mhN8qbM4ETmQDLDx6nY
GCPAtFetLUzaCwOZQ+8=
-----END ENCRYPTED PRIVATE KEY-----
"""
