"""Envoy's filter that verifies JSON Web Tokens, and the cluster that it fetches an identity provider's keys from."""

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from glimpse.gateway.address import Address
from glimpse.gateway.replicas.clusters import named
from glimpse.gateway.tls import named_socket, san_matchers
from glimpse.identity.access import TENANT_HEADER
from glimpse.identity.errors import IdentityConfigError
from glimpse.identity.tokens import check_token_flags, parse_jwks, parse_jwks_ca
from glimpse.identity.watched_file import WatchedFile

_FILTER = "envoy.filters.http.jwt_authn"
_CLUSTER = "jwks"
_PROVIDER = "provider"
_CA_FILE = "/etc/ssl/certs/ca-certificates.crt"
"""Where Debian and most container images have them, if this machine's OpenSSL does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Which tokens are valid."""

    jwks: str
    """File or URL with the provider's public keys."""
    issuer: str
    audience: str
    tenant_claim: str = "sub"
    """The claim that names the tenant."""
    ca: Path | None = None
    """File with the authorities that may sign the certificate of a URL; None: the system's."""

    @property
    def is_fetched(self) -> bool:
        """The keys are at a URL."""
        return self.jwks.startswith(("https://", "http://"))


def parse_tokens(
    jwks: str | None, issuer: str | None, audience: str | None, tenant_claim: str, *, ca: Path | None = None
) -> Tokens | None:
    """Checks the flags together; returns None if tokens are no credentials.

    Raises:
        ValueError: a flag is missing or a file cannot be used; the message is for the user.
    """
    try:
        parse_jwks_ca(jwks, ca)
        check_token_flags(jwks, issuer, audience)
    except IdentityConfigError as error:
        raise ValueError(str(error)) from error
    if jwks is None:
        return None
    tokens = Tokens(jwks=jwks, issuer=issuer or "", audience=audience or "", tenant_claim=tenant_claim, ca=ca)
    if tokens.is_fetched:
        return tokens
    try:
        WatchedFile(Path(jwks), parse_jwks)
    except IdentityConfigError as error:
        raise ValueError(f"'--jwt-jwks': {error}") from error
    return tokens


def token_filter(tokens: Tokens) -> dict[str, Any]:
    """Returns a filter that names the tenant of a valid token. Others pass: what follows decides about them."""
    provider: dict[str, Any] = {
        "issuer": tokens.issuer,
        "audiences": [tokens.audience],
        # The server verifies the token again.
        "forward": True,
        "claim_to_headers": [{"header_name": TENANT_HEADER, "claim_name": tokens.tenant_claim}],
        **_keys(tokens),
    }
    requirement = {"requires_any": {"requirements": [{"provider_name": _PROVIDER}, {"allow_missing_or_failed": {}}]}}
    return {
        "name": _FILTER,
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication",
            "providers": {_PROVIDER: provider},
            "rules": [{"match": {"prefix": "/"}, "requires": requirement}],
        },
    }


def key_cluster(tokens: Tokens) -> dict[str, Any] | None:
    """Returns the cluster that the keys are fetched from; None if they are in a file."""
    if not tokens.is_fetched:
        return None
    url = urlsplit(tokens.jwks)
    is_tls = url.scheme == "https"
    address = Address(host=url.hostname or "", port=url.port or (443 if is_tls else 80))
    return named(_CLUSTER, address, **({"transport_socket": _tls(address.host, tokens.ca)} if is_tls else {}))


def _keys(tokens: Tokens) -> dict[str, Any]:
    if not tokens.is_fetched:
        return {"local_jwks": {"filename": str(Path(tokens.jwks).absolute())}}
    return {
        "remote_jwks": {
            "http_uri": {"uri": tokens.jwks, "cluster": _CLUSTER, "timeout": "10s"},
            "cache_duration": "300s",
            "async_fetch": {"failed_refetch_duration": "5s"},
        }
    }


def _tls(host: str, ca: Path | None) -> dict[str, Any]:
    trusted = ssl.get_default_verify_paths().cafile or _CA_FILE if ca is None else str(ca.absolute())
    return named_socket(host, {"validation_context": {"trusted_ca": {"filename": trusted}, **san_matchers([host])}})
