"""Builds from the settings what decides who may call."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from glimpse.server.identity.access import Access
from glimpse.server.identity.api_keys import parse_keys
from glimpse.server.identity.errors import IdentityConfigError
from glimpse.server.identity.limits import parse_limits
from glimpse.server.identity.tokens import FetchedKeys, TokenVerifier, parse_jwks
from glimpse.server.identity.watched_file import WatchedFile
from glimpse.server.rpc.client_identity import ClientIdentifier
from glimpse.server.settings import AccessSettings

_T = TypeVar("_T")


def build_access(settings: AccessSettings, clients: ClientIdentifier, *, has_client_ca: bool = False) -> Access:
    """Builds it; `has_client_ca`: clients need a certificate. Raises IdentityConfigError: a file cannot be used."""
    keys = _watched(settings.api_keys, parse_keys)
    limits = _watched(settings.tenants, parse_limits)
    is_gateway = clients.is_proxy if settings.tenant_header else None
    if settings.tenant_from_certificate and not has_client_ca:
        raise IdentityConfigError(
            "'--tenant-from-certificate': expected together with --tls-client-ca, which says which are valid"
        )
    access = Access(
        keys=keys,
        tokens=_tokens(settings),
        is_gateway=is_gateway,
        is_proxy=clients.is_proxy,
        by_certificate=settings.tenant_from_certificate,
        limits=limits,
    )
    if limits is not None and not access.is_required:
        raise IdentityConfigError(
            "'--tenants': expected together with --api-keys, --jwt-jwks, --tenant-header or "
            "--tenant-from-certificate, without which there are no tenants"
        )
    return access


def _tokens(settings: AccessSettings) -> TokenVerifier | None:
    required = {"--jwt-issuer": settings.jwt_issuer, "--jwt-audience": settings.jwt_audience}
    if settings.jwt_jwks is None:
        if given := next((flag for flag, value in required.items() if value is not None), None):
            raise IdentityConfigError(
                f"'{given}': expected together with --jwt-jwks, which says whose tokens are valid"
            )
        return None
    for flag, value in required.items():
        if not value:
            raise IdentityConfigError(f"'{flag}': expected together with --jwt-jwks: tokens for others are not for us")
    is_url = settings.jwt_jwks.startswith(("https://", "http://"))
    return TokenVerifier(
        keys=FetchedKeys(settings.jwt_jwks) if is_url else _file(Path(settings.jwt_jwks), parse_jwks),
        issuer=settings.jwt_issuer or "",
        audience=settings.jwt_audience or "",
        tenant_claim=settings.jwt_tenant_claim,
    )


def _watched(path: Path | None, parse: Callable[[str, str], _T]) -> WatchedFile[_T] | None:
    return None if path is None else _file(path, parse)


def _file(path: Path, parse: Callable[[str, str], _T]) -> WatchedFile[_T]:
    return WatchedFile(path.expanduser().absolute(), parse)
