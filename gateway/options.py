"""What a gateway offers its clients, as flags of `glimpse gateway` and `glimpse up`, and its bounds.

The docstring under a flag is its help text.
"""

from dataclasses import dataclass, fields
from typing import Annotated, Any

from cyclopts import Parameter, Token

from glimpse.gateway.address import Address
from glimpse.native.open_files import MAX_CONNECTIONS


def _address(_: type[Address], tokens: list[Token]) -> Address:
    return Address.parse(tokens[0].value)


AddressFlag = Annotated[Address, Parameter(converter=_address, n_tokens=1, accepts_keys=False)]
_Names = Annotated[tuple[str, ...], Parameter(negative="", show_default=False)]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class PublicOptions:
    """What clients of a gateway may notice, wherever its Envoy runs."""

    allow_origin: _Names = ()
    """Origin of web pages that may call, such as https://app.example; "*" allows all. Default: pages of this
    machine and, on a loopback address, applications with a web view and extensions of browsers."""
    allowed_host: _Names = ()
    """Host name under which the gateway answers, in addition to localhost; repeatable. Default: no other on a loopback
    address, against web pages whose names resolve to it; any on other addresses."""
    access_log: bool = False
    """The gateway writes a line for each request to standard output."""
    otlp_endpoint: AddressFlag | None = None
    """HOST:PORT of a collector to which the gateway sends its spans as OTLP over gRPC, without TLS. Default: none."""
    connect: Annotated[bool, Parameter(negative="")] = False
    """The gateway speaks Connect's protocol too. Experimental: Envoy calls its own filter for it work in progress."""
    page: bool = True
    """Serve a page for people at / and the API reference at /docs, on the gateway's port. --no-page turns both off."""


def public_members(options: PublicOptions) -> dict[str, Any]:
    """Returns the public ones of a gateway's options, or flags, by name."""
    return {field.name: getattr(options, field.name) for field in fields(PublicOptions)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on what all clients together may take from the gateway."""

    max_connections: int = MAX_CONNECTIONS
    """Connections of clients. Further ones are closed at once."""
    max_heap_bytes: int = 768 << 20
    """Envoy's memory. Near it, Envoy refuses requests with 503."""
    max_idle_seconds: int = 300
    """After which a connection without requests is closed."""
    max_mute_seconds: int = 10
    """After which a new connection whose client has sent no byte is closed."""
    max_unread_seconds: int = 60
    """After which a response ends whose client does not read it. The server ends its part after as much."""
    max_age_seconds: int | None = None
    """After which a connection's client is asked to connect anew. Running requests end first. None: never."""
    max_pause_seconds: int = 30
    """Between two pieces of a body whose beginning Envoy holds to find its key. The server then allows as much."""


DEFAULT_LIMITS = Limits()
