"""What a gateway offers its clients, as flags of `glimpse gateway` and `glimpse up`, and its bounds.

The docstring under a flag is its help text.
"""

import re
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter, Token
from cyclopts.validators import Number
from pydantic import ByteSize, TypeAdapter, ValidationError

from glimpse.gateway.address import Address

_MIN_HEAP_BYTES = 64 << 20
"""Envoy itself needs about half of it."""


_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/\sA-Z]*")
"""What browsers send."""
_HOST = re.compile(r"[\w.-]+|\[[\da-fA-F:.]+\]", re.ASCII)


def _human_readable(size: int) -> str:
    return ByteSize(size).human_readable()


def _address(_: type[Address], tokens: list[Token]) -> Address:
    return Address.parse(tokens[0].value)


def _bytes(_: type[int], tokens: list[Token]) -> int:
    try:
        return TypeAdapter(ByteSize).validate_python(tokens[0].value)
    except ValidationError:
        raise ValueError(f"expected a size such as 2GiB, got {tokens[0].value!r}") from None


AddressFlag = Annotated[Address, Parameter(converter=_address, n_tokens=1, accepts_keys=False)]
Count = Annotated[int, Parameter(validator=Number(gte=1))]
_Names = Annotated[tuple[str, ...], Parameter(negative="", show_default=False)]
_Size = Annotated[int, Parameter(converter=_bytes, validator=Number(gte=_MIN_HEAP_BYTES), show_default=_human_readable)]


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

    def check_names(self) -> None:
        """Raises ValueError for an origin or a host that no request can have."""
        for origin in self.allow_origin:
            if _ORIGIN.fullmatch(origin) is None:
                expected = "an origin such as https://app.example, in small letters and without a path"
                raise ValueError(f"'--allow-origin': expected {expected}, got {origin!r}")
        for host in self.allowed_host:
            if _HOST.fullmatch(host) is None:
                raise ValueError(f"'--allowed-host': expected a name such as api.example, without a port, got {host!r}")


_NoFlag = Annotated[int, Parameter(parse=False)]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLimits:
    """Bounds on what all clients together may take from the gateway."""

    max_connections: Annotated[Count | None, Parameter(show_default=False)] = None
    """Most connections of clients. Further ones are closed at once. Default: 10000, or fewer where Envoy runs here and
    the limit of open files is low."""
    max_connection_age: Count | None = None
    """Seconds after which a client is told to connect anew, so that load spreads. Running requests end first, however
    long they take. Default: never."""
    max_heap_bytes: _Size = 768 << 20
    """Envoy's memory, such as 2GiB. Near it, requests are refused with 503."""
    max_idle_seconds: _NoFlag = 300
    """After which a connection without requests is closed."""
    max_mute_seconds: _NoFlag = 10
    """After which a new connection whose client has sent no byte is closed."""
    max_unread_seconds: _NoFlag = 60
    """After which a response ends whose client does not read it. The server ends its part after as much."""
    max_pause_seconds: _NoFlag = 30
    """Between two pieces of a body whose beginning Envoy holds to find its key. The server then allows as much."""
    max_silent_seconds: _NoFlag = 20
    """After which a server that does not answer a ping is gone, and its requests end. It is pinged as often."""


DEFAULT_LIMITS = GatewayLimits()
