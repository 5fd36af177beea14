"""Network addresses, `host:port`."""

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A host and a TCP port."""

    host: str
    """A name or an IP address; an IPv6 address has no brackets here."""
    port: int
    """0 lets the system choose, for a listener."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses "127.0.0.1:8080", "glimpse:50051" or "[::1]:8080".

        Raises:
            ValueError: the text is not a host and a port.
        """
        host, colon, port = text.rpartition(":")
        bare = host.removeprefix("[").removesuffix("]")
        if not colon or not bare or not (port.isascii() and port.isdigit()) or int(port) > 65535:
            raise ValueError(f"expected an address such as 127.0.0.1:8080, got {text!r}")
        if "/" in bare:
            raise ValueError(f"expected HOST:PORT without a scheme, got {text!r}")
        if ":" in bare and not host.startswith("["):
            raise ValueError(f"expected an IPv6 address in brackets, such as [::1]:8080, got {text!r}")
        return cls(host=bare, port=int(port))

    @property
    def of_envoy(self) -> dict[str, Any]:
        """Envoy's `core.v3.Address`."""
        return {"socket_address": {"address": self.host, "port_value": self.port}}

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_ip(host: str) -> bool:
    """Whether a host is an IP address rather than a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
