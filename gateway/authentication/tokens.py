"""Envoy's filter that verifies JSON Web Tokens, and the cluster that it fetches an identity provider's keys from."""

import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from glimpse.gateway.address import Address
from glimpse.gateway.replicas.clusters import named
from glimpse.gateway.tls import named_socket, san_matchers
from glimpse.identity.access import TENANT_HEADER
from glimpse.identity.authentication import AuthenticationOptions

_FILTER = "envoy.filters.http.jwt_authn"
_CLUSTER = "jwks"
_PROVIDER = "provider"
_CA_FILE = "/etc/ssl/certs/ca-certificates.crt"
"""Where Debian and most container images have them, if this machine's OpenSSL does not say."""


def token_filter(options: AuthenticationOptions) -> dict[str, Any]:
    """Returns a filter that names the tenant of a valid token. Others pass: what follows decides about them."""
    provider: dict[str, Any] = {
        "issuer": options.jwt_issuer,
        "audiences": [options.jwt_audience],
        # The server verifies the token again.
        "forward": True,
        "claim_to_headers": [{"header_name": TENANT_HEADER, "claim_name": options.jwt_tenant_claim}],
        **_keys(options),
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


def key_cluster(options: AuthenticationOptions) -> dict[str, Any] | None:
    """Returns the cluster that the keys are fetched from; None if they are in a file."""
    if options.jwks_url is None:
        return None
    url = urlsplit(options.jwks_url)
    is_tls = url.scheme == "https"
    address = Address(host=url.hostname or "", port=url.port or (443 if is_tls else 80))
    return named(_CLUSTER, address, **({"transport_socket": _tls(address.host, options.jwt_jwks_ca)} if is_tls else {}))


def _keys(options: AuthenticationOptions) -> dict[str, Any]:
    if options.jwks_url is None:
        return {"local_jwks": {"filename": str(options.jwks_file)}}
    return {
        "remote_jwks": {
            "http_uri": {"uri": options.jwks_url, "cluster": _CLUSTER, "timeout": "10s"},
            "cache_duration": "300s",
            "async_fetch": {"failed_refetch_duration": "5s"},
        }
    }


def _tls(host: str, ca: Path | None) -> dict[str, Any]:
    trusted = ssl.get_default_verify_paths().cafile or _CA_FILE if ca is None else str(ca.absolute())
    return named_socket(host, {"validation_context": {"trusted_ca": {"filename": trusted}, **san_matchers([host])}})
