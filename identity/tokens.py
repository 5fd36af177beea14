"""JSON Web Tokens (RFC 7519) of an identity provider, as credentials. The provider's public keys come as a JWKS."""

import asyncio
import logging
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from glimpse.identity.authentication import AuthenticationOptions
from glimpse.identity.errors import IdentityConfigError
from glimpse.identity.tenant import is_tenant_name
from glimpse.identity.tls import check_authorities
from glimpse.identity.watched_file import watch_flag

# They take 0.2 s to import, which servers and gateways save that have no provider.
if TYPE_CHECKING:
    import aiohttp
    import jwt

_logger = logging.getLogger(__name__)

_ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
"""Public-key algorithms alone: with a shared secret, whoever can verify a token could also make one."""
_LEEWAY_SECONDS = 60
"""By how much clocks may differ, as in Envoy."""
_REFRESH_SECONDS = 300.0
_RETRY_SECONDS = 5.0
_FETCH_SECONDS = 10.0
_MAX_JWKS_BYTES = 1 << 20

Jwks = Sequence["jwt.PyJWK"]


class KeySource(Protocol):
    """Where the provider's public keys come from."""

    @property
    def value(self) -> Jwks:
        """The keys of this moment."""
        ...

    async def watch(self) -> None:
        """Keeps them up to date, until it is cancelled."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenVerifier:
    """Verifies tokens of one provider for one audience."""

    keys: KeySource
    issuer: str
    """The `iss` of valid tokens."""
    audience: str
    """One `aud` of valid tokens."""
    tenant_claim: str
    """The claim that names the tenant, a string."""

    def tenant(self, token: str) -> str | None:
        """Returns the tenant of a valid token, None of any other credential."""
        import jwt  # noqa: PLC0415 - see above

        try:
            key = self._key(jwt.get_unverified_header(token))
            if key is None:
                return None
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key,
                algorithms=_ALGORITHMS,
                issuer=self.issuer,
                audience=self.audience,
                leeway=_LEEWAY_SECONDS,
                options={"require": ["exp", "iss", "aud"]},
            )
        except jwt.PyJWTError:
            return None
        name = claims.get(self.tenant_claim)
        return name if isinstance(name, str) and is_tenant_name(name) else None

    def _key(self, header: Mapping[str, Any]) -> "jwt.PyJWK | None":
        keys = self.keys.value
        if "kid" not in header:
            return keys[0] if len(keys) == 1 else None
        return next((key for key in keys if key.key_id == header["kid"]), None)


def parse_jwks(text: str, name: str) -> Jwks:
    """Returns the keys of a JWKS. Raises IdentityConfigError, with `name`, where it came from."""
    import jwt  # noqa: PLC0415 - see above

    try:
        return jwt.PyJWKSet.from_json(text).keys
    except (jwt.PyJWTError, ValueError, AttributeError, RecursionError) as error:
        raise IdentityConfigError(f"'{name}': expected a JWKS, a JSON object with public keys: {error}") from error


def build_verifier(options: AuthenticationOptions) -> TokenVerifier | None:
    """Returns what verifies tokens as options that were checked say; None where tokens are no credentials.

    Raises:
        IdentityConfigError: a file cannot be used. The message names the flag.
    """
    tls = _jwks_tls(options)
    if options.jwt_jwks is None:
        return None
    file = options.jwks_file
    return TokenVerifier(
        keys=FetchedKeys(options.jwt_jwks, tls) if file is None else watch_flag("--jwt-jwks", file, parse_jwks),
        issuer=options.jwt_issuer or "",
        audience=options.jwt_audience or "",
        tenant_claim=options.jwt_tenant_claim,
    )


def _jwks_tls(options: AuthenticationOptions) -> ssl.SSLContext | None:
    """Returns how the certificate of a URL with a JWKS is checked; None: as the system does."""
    if options.jwt_jwks_ca is None:
        return None
    if not (options.jwks_url or "").startswith("https://"):
        raise IdentityConfigError("'--jwt-jwks-ca': expected together with an https:// URL as --jwt-jwks")
    check_authorities("--jwt-jwks-ca", options.jwt_jwks_ca)
    return ssl.create_default_context(cafile=options.jwt_jwks_ca)


class FetchedKeys:
    """Keys that a provider publishes at a URL. Until they are first fetched there are none."""

    def __init__(self, url: str, tls: ssl.SSLContext | None = None) -> None:
        """`tls`: how the certificate of an https:// URL is checked. Default: as the system does."""
        self._url = url
        self._tls = True if tls is None else tls
        self.value: Jwks = ()

    async def watch(self) -> None:
        """Fetches them again and again, until it is cancelled. After a failure the last ones stay valid."""
        import aiohttp  # noqa: PLC0415 - see above

        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_FETCH_SECONDS)) as session:
            while True:
                seconds = _REFRESH_SECONDS if await self._fetch(session) else _RETRY_SECONDS
                await asyncio.sleep(seconds)

    async def _fetch(self, session: "aiohttp.ClientSession") -> bool:
        import aiohttp  # noqa: PLC0415 - see above

        try:
            async with session.get(self._url, raise_for_status=True, ssl=self._tls) as answer:
                data = await self._read(answer)
            self.value = parse_jwks(data.decode(), self._url)
        except (aiohttp.ClientError, TimeoutError, UnicodeDecodeError, IdentityConfigError) as error:
            _logger.warning("the keys of --jwt-jwks could not be fetched: %s", error or type(error).__name__)
            return False
        return True

    async def _read(self, answer: "aiohttp.ClientResponse") -> bytes:
        """Returns the whole body, however many pieces it comes in. Raises IdentityConfigError if it is too large."""
        data = bytearray()
        async for piece in answer.content.iter_any():
            data += piece
            if len(data) > _MAX_JWKS_BYTES:
                raise IdentityConfigError(f"'{self._url}': expected at most {_MAX_JWKS_BYTES} bytes, got more")
        return bytes(data)
