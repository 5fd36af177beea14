"""Tokens of a provider give a tenant only while everything about them is right."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest

from glimpse.identity.access import Access
from glimpse.identity.authentication import AuthenticationOptions
from glimpse.identity.errors import IdentityConfigError, UnauthenticatedError
from glimpse.identity.tokens import FetchedKeys, KeySource, TokenVerifier, build_verifier, parse_jwks
from glimpse.identity.watched_file import WatchedFile
from tests.identity.tokens import AUDIENCE, ISSUER, Provider, published
from tests.paths import ROOT
from tests.waiting import until

CERTIFICATES = ROOT / "tests" / "gateway" / "certificates"
CHAT = "/glimpse.v1.ChatService/CountTokens"


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
def keys(provider: Provider, tmp_path: Path) -> KeySource:
    (tmp_path / "jwks").write_text(provider.jwks)
    return WatchedFile(tmp_path / "jwks", parse_jwks)


def fetched_keys(jwks: str | None, ca: Path | None) -> KeySource:
    built = build_verifier(AuthenticationOptions(jwt_jwks=jwks, jwt_jwks_ca=ca))
    assert built is not None
    return built.keys


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
    for text in ("{", "[]", "[" * 100_000, '{"keys": []}', '{"keys": [{"kty": "none"}]}'):
        with pytest.raises(IdentityConfigError, match="'file': expected a JWKS"):
            parse_jwks(text, "file")


async def fetches(keys: KeySource, condition: Callable[[], bool]) -> None:
    """Waits until the condition holds, while the keys are fetched."""
    watching = asyncio.create_task(keys.watch())
    try:
        await until(condition)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_keys_are_fetched_from_a_url(provider: Provider):
    async with published(provider.jwks) as url:
        keys = FetchedKeys(url)
        assert verifier(keys).tenant(provider.token()) is None
        await fetches(keys, lambda: verifier(keys).tenant(provider.token()) == "acme")


async def test_authority_of_the_url_is_the_one_that_is_named(provider: Provider, caplog: pytest.LogCaptureFixture):
    async with published(provider.jwks, certificate=CERTIFICATES / "gateway.pem") as url:
        for ca in (CERTIFICATES / "stranger.pem", None):
            keys = fetched_keys(url, ca)
            await fetches(keys, lambda: "could not be fetched" in caplog.text)
            assert "certificate verify failed" in caplog.text.replace("_", " ").lower()
            assert keys.value == ()
            caplog.clear()
        keys = fetched_keys(url, CERTIFICATES / "ca.pem")
        await fetches(keys, lambda: verifier(keys).tenant(provider.token()) == "acme")


async def test_keys_that_are_too_large_are_refused(provider: Provider, caplog: pytest.LogCaptureFixture):
    async with published(provider.jwks + " " * (1 << 20)) as url:
        keys = FetchedKeys(url)
        await fetches(keys, lambda: "expected at most 1048576 bytes" in caplog.text)
        assert keys.value == ()


def test_unusable_authority_is_refused(tmp_path: Path):
    (tmp_path / "ca").write_text("broken")
    for jwks in (None, "file", "http://issuer.example/jwks"):
        with pytest.raises(IdentityConfigError, match="'--jwt-jwks-ca': expected together with an https:// URL"):
            fetched_keys(jwks, CERTIFICATES / "ca.pem")
    for path, expected in ((tmp_path / "ca", "a PEM file"), (tmp_path / "none", "a file that exists")):
        with pytest.raises(IdentityConfigError, match=f"'--jwt-jwks-ca': expected {expected}"):
            fetched_keys("https://issuer.example/jwks", path)
