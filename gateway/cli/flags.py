"""Flags of `glimpse gateway`: those that its commands have in common, and what they are together.

The docstring under a field is its help text.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, Token
from cyclopts.validators import Number
from pydantic import ByteSize, TypeAdapter, ValidationError

from glimpse.gateway.address import Address
from glimpse.gateway.options import DEFAULT_LIMITS, AddressFlag, PublicOptions, public_members
from glimpse.gateway.tls import NO_UPSTREAM_TLS, UpstreamTls

_MIN_HEAP_BYTES = 64 << 20
"""Envoy itself needs about half of it."""


def _human_readable(size: int) -> str:
    return ByteSize(size).human_readable()


def _addresses(_: type[tuple[Address, ...]], tokens: list[Token]) -> tuple[Address, ...]:
    return tuple(Address.parse(token.value) for token in tokens)


def _bytes(_: type[int], tokens: list[Token]) -> int:
    try:
        return TypeAdapter(ByteSize).validate_python(tokens[0].value)
    except ValidationError:
        raise ValueError(f"expected a size such as 2GiB, got {tokens[0].value!r}") from None


Seconds = Annotated[int, Parameter(validator=Number(gte=0))]
Count = Annotated[int, Parameter(validator=Number(gte=1))]
MaxConnections = Annotated[Count, Parameter(help="Most connections of clients. Further ones are closed at once.")]
"""The default differs between the commands."""

_Addresses = Annotated[
    tuple[Address, ...],
    # Not JSON: the address [::1]:50051 begins like a list.
    Parameter(converter=_addresses, n_tokens=1, accepts_keys=False, negative="", json_list=False),
]
_Size = Annotated[int, Parameter(converter=_bytes, validator=Number(gte=_MIN_HEAP_BYTES), show_default=_human_readable)]

LISTEN = Address(host="127.0.0.1", port=8080)
UPSTREAM = Address(host="127.0.0.1", port=50051)


NO_KEYS = (
    "'--api-keys': expected with `glimpse serve` or `glimpse up`, got it with `glimpse gateway`, which passes keys on "
    "to the server that judges them; /metrics, with --metrics-upstream, is then open to all who reach the gateway"
)


class FlagError(Exception):
    """Flags contradict each other, or name a file that cannot be used. The message is for the user."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayFlags(PublicOptions):
    """What a gateway does, wherever its Envoy runs."""

    upstream: _Addresses = (UPSTREAM,)
    """A server's gRPC address; a name may resolve to several. Repeat the flag for more."""
    route_by_key: bool | None = None
    """Send requests with the same prompt_cache_key, or the same beginning of a conversation, to the same server.
    Default: where there may be several, that is, with several addresses or a name."""
    metrics_upstream: AddressFlag | None = None
    """The server's Prometheus endpoint, to be served as /metrics. For a gateway with a single server. Default: none."""
    tls_certificate: Path | None = None
    """PEM file of the gateway's certificate. Turns TLS on. Default: plain text."""
    tls_key: Path | None = None
    """PEM file of the certificate's private key."""
    tls_client_ca: Path | None = None
    """PEM file of the CA that signs client certificates, which are then required (mutual TLS)."""
    api_keys: Path | None = None
    """Refused: the server judges API keys, with its own --api-keys."""
    jwt_jwks: str | None = None
    """File or URL with the public keys (JWKS) of an identity provider. Requests then need one of its JWTs, except for
    health. A URL is fetched again every 5 minutes, a file is read at the start."""
    jwt_jwks_ca: Path | None = None
    """File with the authorities that may sign the certificate of --jwt-jwks, an https:// URL. Default: the system's."""
    jwt_issuer: str | None = None
    """Issuer (`iss`) of valid JWTs."""
    jwt_audience: str | None = None
    """Audience (`aud`) of valid JWTs."""
    jwt_tenant_claim: str = "sub"
    """Claim of JWTs that names the tenant."""
    tenant_from_certificate: Annotated[bool, Parameter(negative="")] = False
    """The tenant of a request is the first URI, else the first DNS name, of the client's certificate."""
    upstream_tls: UpstreamTls = NO_UPSTREAM_TLS
    """TLS of connections to the servers."""
    max_connection_age: Count | None = None
    """Seconds after which a client is told to connect anew, so that load spreads. Running requests end first, however
    long they take. Default: never."""
    max_heap_bytes: _Size = DEFAULT_LIMITS.max_heap_bytes
    """Envoy's memory, such as 2GiB. Near it, requests are refused with 503."""

    def with_public(self, text: str) -> "GatewayFlags":
        """Returns these flags with the `PublicOptions` of a JSON object."""
        return replace(self, **public_members(TypeAdapter(PublicOptions).validate_json(text)))


DEFAULTS = GatewayFlags()


def checked(tls: UpstreamTls) -> UpstreamTls:
    """Returns its argument. Raises FlagError if the flags cannot be used together."""
    try:
        tls.check()
    except ValueError as error:
        raise FlagError(str(error)) from error
    return tls
