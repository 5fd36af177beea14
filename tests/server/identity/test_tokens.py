"""Tokens of a provider give a tenant only while everything about them is right."""

import asyncio
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from aiohttp import web

from glimpse.server.identity.access import Access
from glimpse.server.identity.errors import IdentityConfigError, UnauthenticatedError
from glimpse.server.identity.tokens import FetchedKeys, KeySource, TokenVerifier, parse_jwks
from glimpse.server.identity.watched_file import WatchedFile
from tests.server.identity.tokens import AUDIENCE, ISSUER, Provider

CHAT = "/glimpse.v1.ChatService/CountTokens"


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
def keys(provider: Provider, tmp_path: Path) -> KeySource:
    (tmp_path / "jwks").write_text(provider.jwks)
    return WatchedFile(tmp_path / "jwks", parse_jwks)


def verifier(keys: KeySource, tenant_claim: str = "sub") -> TokenVerifier:
    return TokenVerifier(keys=keys, issuer=ISSUER, audience=AUDIENCE, tenant_claim=tenant_claim)


def test_token_gives_the_tenant(provider: Provider, keys: KeySource):
    assert verifier(keys).tenant(provider.token()) == "acme"
    assert verifier(keys).tenant(provider.token(aud=["other", AUDIENCE])) == "acme"
    assert verifier(keys, "org").tenant(provider.token(org="umbrella")) == "umbrella"


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": 1_000_000_000},
        {"exp": None},
        {"nbf": 32_000_000_000},
        {"iss": "https://other.example"},
        {"aud": "another"},
        {"aud": None},
        {"sub": None},
        {"sub": ""},
        {"sub": "a b"},
    ],
    ids=str,
)
def test_token_that_is_not_valid_gives_none(provider: Provider, keys: KeySource, claims: dict[str, Any]):
    assert verifier(keys).tenant(provider.token(**claims)) is None


def test_signature_must_be_the_provider_s(provider: Provider, keys: KeySource):
    payload = {"iss": ISSUER, "aud": AUDIENCE, "sub": "acme", "exp": int(time.time()) + 3600}
    forged = [
        Provider().token(),
        Provider("other").token(),
        jwt.encode(payload, "", "none", {"kid": "first"}),
        jwt.encode(payload, "a secret of at least thirty-two bytes", "HS256", {"kid": "first"}),
        provider.token()[:-4] + "AAAA",
        "glimpse-key",
        "",
    ]
    assert [verifier(keys).tenant(token) for token in forged] == [None] * len(forged)


def test_bearer_token_is_a_credential(provider: Provider, keys: KeySource):
    access = Access(tokens=verifier(keys))
    identity = access.authenticate(CHAT, [("authorization", f"Bearer {provider.token()}")])
    assert (identity.tenant.name, identity.is_admin) == ("acme", False)
    with pytest.raises(UnauthenticatedError):
        access.authenticate(CHAT, [("authorization", f"Bearer {Provider().token()}")])


def test_unusable_jwks_is_refused():
    for text in ("{", "[]", '{"keys": []}', '{"keys": [{"kty": "none"}]}'):
        with pytest.raises(IdentityConfigError, match="'file': expected a JWKS"):
            parse_jwks(text, "file")


async def test_keys_are_fetched_from_a_url(provider: Provider):
    async def publish(_request: web.Request) -> web.Response:
        return web.Response(text=provider.jwks)

    app = web.Application()
    app.router.add_get("/jwks", publish)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    keys = FetchedKeys(f"http://127.0.0.1:{runner.addresses[0][1]}/jwks")
    assert verifier(keys).tenant(provider.token()) is None
    watching = asyncio.create_task(keys.watch())
    async with asyncio.timeout(30):
        while verifier(keys).tenant(provider.token()) != "acme":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await runner.cleanup()
