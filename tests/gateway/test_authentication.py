"""Who is calling, as Envoy checks it: tokens and certificates, over REST, gRPC and grpc-web. The server checks keys."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import grpc
import grpc.aio
import pytest
import pytest_asyncio

from glimpse.gateway.config import GatewayOptions
from glimpse.gateway.run import Envoy
from glimpse.identity.authentication import AuthenticationOptions
from glimpse.identity.errors import IdentityConfigError
from glimpse.identity.tls import ListenerTls
from glimpse.v1 import chat_pb2, chat_pb2_grpc
from tests.gateway.backend import Backend
from tests.gateway.conftest import ANY_PORT
from tests.identity.tokens import AUDIENCE, ISSUER, Provider, published

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
FILES = Path(__file__).with_name("certificates")
MUTUAL = ListenerTls(
    tls_certificate=FILES / "gateway.pem", tls_key=FILES / "gateway.key", tls_client_ca=FILES / "tenants-ca.pem"
)


def accepting(jwks: str, ca: Path | None = None) -> AuthenticationOptions:
    return AuthenticationOptions(jwt_jwks=jwks, jwt_jwks_ca=ca, jwt_issuer=ISSUER, jwt_audience=AUDIENCE)


def write_lines(path: Path, *lines: str) -> None:
    path.write_text("\n".join(lines))


PROVIDER = Provider()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def checking(shared_backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Envoy]:
    """A gateway that requires tokens."""
    run_dir = tmp_path_factory.mktemp("checking")
    write_lines(run_dir / "jwks", PROVIDER.jwks)
    authentication = accepting(str(run_dir / "jwks"))
    options = GatewayOptions(listen=ANY_PORT, upstream=(shared_backend.address,), authentication=authentication)
    async with Envoy(options, run_dir=run_dir) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def rest(checking: Envoy) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(checking.url) as session:
        yield session


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer"},
        {"authorization": "Bearer acme"},
        {"x-api-key": "acme-key"},
        {"x-glimpse-tenant": "acme"},
    ],
    ids=str,
)
async def test_request_without_one_does_not_reach_the_server(
    rest: aiohttp.ClientSession, backend: Backend, headers: dict[str, str]
) -> None:
    async with rest.post(CHAT, data="{}", headers=JSON | headers) as answer:
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
        error = (await answer.json())["error"]
    assert (error["type"], error["code"]) == ("authentication_error", "invalid_credential")
    assert "Authorization: Bearer TOKEN" in error["message"]
    async with rest.post("/glimpse/v1/chatCompletions", data="{}", headers=JSON | headers) as answer:
        assert (answer.status, answer.headers["www-authenticate"], (await answer.json())["code"]) == (401, "Bearer", 16)
    assert backend.num_calls == 0


async def test_grpc_and_grpc_web_are_unauthenticated(rest: aiohttp.ClientSession, checking: Envoy) -> None:
    message = chat_pb2.CountTokensRequest(messages=[{}])
    async with grpc.aio.insecure_channel(str(checking.address)) as channel:
        chat = chat_pb2_grpc.ChatServiceStub(channel)
        answer = await chat.CountTokens(message, metadata=(("authorization", f"Bearer {PROVIDER.token()}"),))
        assert answer.prompt_tokens == 7
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await chat.CountTokens(message)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert "Authorization: Bearer TOKEN" in (caught.value.details() or "")
    headers = {"content-type": "application/grpc-web+proto"}
    async with rest.post("/glimpse.v1.ChatService/CountTokens", data=bytes(5), headers=headers) as web:
        assert web.headers["grpc-status"] == "16"


async def test_health_and_preflights_need_no_credential(rest: aiohttp.ClientSession) -> None:
    async with rest.get("/health") as answer:
        assert answer.status == 200
    preflight = {"origin": "http://localhost:3000", "access-control-request-method": "POST"}
    async with rest.options(CHAT, headers=preflight) as answer:
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, preflight["origin"])


async def test_certificate_gives_the_tenant(backend: Backend, tmp_path: Path) -> None:
    authentication = AuthenticationOptions(tenant_from_certificate=True)
    trusting = ssl.create_default_context(cafile=FILES / "ca.pem")
    trusting.load_cert_chain(FILES / "tenant.pem", FILES / "tenant.key")
    async with (
        Envoy(
            GatewayOptions(listen=ANY_PORT, upstream=(backend.address,), tls=MUTUAL, authentication=authentication),
            run_dir=tmp_path,
        ) as envoy,
        aiohttp.ClientSession(envoy.url) as session,
        session.post(CHAT, data="{}", headers=JSON | {"x-glimpse-tenant": "forged"}, ssl=trusting) as answer,
    ):
        assert answer.status == 200
    assert backend.metadata["x-glimpse-tenant"] == "spiffe://example.org/acme"


@pytest.mark.parametrize("where", ["file", "http", "localhost", "127.0.0.1"])
async def test_token_gives_the_tenant(backend: Backend, tmp_path: Path, where: str) -> None:
    provider = Provider()
    write_lines(tmp_path / "jwks", provider.jwks)
    is_https = where in ("localhost", "127.0.0.1")
    certificate, ca = (FILES / "gateway.pem", FILES / "ca.pem") if is_https else (None, None)
    async with published(provider.jwks, certificate=certificate, host=where if is_https else "127.0.0.1") as url:
        jwks = str(tmp_path / "jwks") if where == "file" else url
        authentication = accepting(jwks, ca)
        async with (
            Envoy(
                GatewayOptions(listen=ANY_PORT, upstream=(backend.address,), authentication=authentication),
                run_dir=tmp_path,
            ) as envoy,
            aiohttp.ClientSession(envoy.url) as session,
        ):

            async def ask(credential: str) -> tuple[int, str]:
                backend.metadata = {}
                headers = JSON | {"authorization": f"Bearer {credential}", "x-glimpse-tenant": "forged"}
                async with session.post(CHAT, data="{}", headers=headers) as answer:
                    return answer.status, backend.metadata.get("x-glimpse-tenant", "")

            while await ask(provider.token()) != (200, "acme"):  # noqa: ASYNC110 - the keys may be on their way
                await asyncio.sleep(0.05)
            for refused in (Provider().token(), provider.token(exp=1), provider.token(aud="another"), "x"):
                assert await ask(refused) == (401, "")


async def test_gateway_that_does_not_authenticate_passes_no_tenant(
    http: aiohttp.ClientSession, backend: Backend
) -> None:
    async with http.post(CHAT, data="{}", headers=JSON | {"x-glimpse-tenant": "forged"}) as answer:
        assert answer.status == 200
    assert "x-glimpse-tenant" not in backend.metadata


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (GatewayOptions(api_keys=FILES / "keys"), "'--api-keys': expected with `glimpse serve` or `glimpse up`"),
        (
            GatewayOptions(authentication=replace(accepting("https://issuer.example/jwks"), jwt_audience=None)),
            "'--jwt-audience': expected together with --jwt-jwks",
        ),
        (
            GatewayOptions(authentication=accepting("http://issuer.example/jwks", FILES / "ca.pem")),
            "'--jwt-jwks-ca': expected together with an https:// URL",
        ),
        (GatewayOptions(authentication=accepting("/none")), "'--jwt-jwks': '/none': expected a readable file"),
        (
            GatewayOptions(authentication=AuthenticationOptions(tenant_from_certificate=True)),
            "'--tenant-from-certificate': expected together with --tls-client-ca",
        ),
    ],
)
async def test_unusable_options_are_refused(options: GatewayOptions, message: str) -> None:
    with pytest.raises((ValueError, IdentityConfigError), match=message):
        options.check()
