"""Tokens and certificates as credentials: flags of the server, and of a gateway that checks them before servers do."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from glimpse.identity.errors import IdentityConfigError

DEFAULT_TENANT_CLAIM = "sub"


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class AuthenticationOptions:
    """Which tokens and certificates name a tenant. By default none does."""

    jwt_jwks: str | None = None
    """File or URL with the public keys (JWKS) of an identity provider. Its JWTs are then credentials, and requests need
    a credential, except for health. A URL is fetched again every 5 minutes. The server reads a file again when it
    changes, a gateway only at its start."""
    jwt_jwks_ca: Path | None = None
    """File with the authorities that may sign the certificate of --jwt-jwks, an https:// URL. Default: the system's."""
    jwt_issuer: str | None = None
    """Issuer (`iss`) of valid JWTs."""
    jwt_audience: str | None = None
    """Audience (`aud`) of valid JWTs."""
    jwt_tenant_claim: str = DEFAULT_TENANT_CLAIM
    """Claim of JWTs that names the tenant."""
    tenant_from_certificate: Annotated[bool, Parameter(negative="")] = False
    """The tenant is the first URI, else the first DNS name, of the client's certificate. Requires --tls-client-ca."""

    @property
    def is_on(self) -> bool:
        """Requests without a credential are refused."""
        return self.jwt_jwks is not None or self.tenant_from_certificate

    @property
    def jwks_url(self) -> str | None:
        """URL of the keys. None: there are none, or they are in a file."""
        return (
            self.jwt_jwks if self.jwt_jwks is not None and self.jwt_jwks.startswith(("https://", "http://")) else None
        )

    @property
    def jwks_file(self) -> Path | None:
        """File with the keys. None: there are none, or they are at a URL."""
        return (
            None if self.jwt_jwks is None or self.jwks_url is not None else Path(self.jwt_jwks).expanduser().absolute()
        )

    def check(self, *, has_client_ca: bool) -> None:
        """Raises IdentityConfigError where an option lacks those that it needs. `has_client_ca`: of the listener."""
        if self.jwt_jwks is None and self.jwt_tenant_claim != DEFAULT_TENANT_CLAIM:
            raise IdentityConfigError("'--jwt-tenant-claim': expected together with --jwt-jwks, whose tokens have it")
        for flag, value in {"--jwt-issuer": self.jwt_issuer, "--jwt-audience": self.jwt_audience}.items():
            if self.jwt_jwks is None and value is not None:
                reason = "which says whose tokens are valid"
                raise IdentityConfigError(f"'{flag}': expected together with --jwt-jwks, {reason}")
            if self.jwt_jwks is not None and not value:
                raise IdentityConfigError(
                    f"'{flag}': expected together with --jwt-jwks: tokens for others are not for us"
                )
        if self.tenant_from_certificate and not has_client_ca:
            raise IdentityConfigError(
                "'--tenant-from-certificate': expected together with --tls-client-ca, which says which are valid"
            )


NO_AUTHENTICATION = AuthenticationOptions()
