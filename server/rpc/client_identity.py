"""Derives who sent an RPC, so that each client gets its share of the engine. Not authentication: keys are not checked.

A client is known by its tenant if the server authenticates, else by its API key, else by its address. Names are opaque:
hashes whose key is drawn when the process starts, so that neither engine nor logs ever hold an API key.
"""

import hashlib
import secrets
from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import unquote

from glimpse.identity.access import ADDRESS_HEADER, KEY_HEADERS

_PLACEHOLDERS = frozenset(("", "empty", "none", "null", "dummy", "unused", "sk-no-key-required"))
"""What clients send in place of an API key because their library demands one. Many share them."""
_IPV6_PREFIX = 64
"""Hosts have whole networks of this size, and may use any address in them."""

Network = IPv4Network | IPv6Network
LOOPBACK = (IPv4Network("127.0.0.0/8"), IPv6Network("::1/128"))


class ClientIdentifier:
    """Names clients, differently with each salt."""

    def __init__(self, trusted_proxies: Iterable[Network] = LOOPBACK, salt: bytes | None = None) -> None:
        """
        Args:
            trusted_proxies: Networks of peers that may say which address they speak for.
            salt: 32 random bytes; None: draw them.
        """
        self._trusted_proxies = tuple(trusted_proxies)
        self._salt = salt or secrets.token_bytes(32)

    def identify(self, metadata: Iterable[tuple[str, str | bytes]], peer: str) -> str:
        """Returns an opaque name.

        Args:
            metadata: The RPC's invocation metadata.
            peer: The other end of the connection, as gRPC writes it, such as "ipv4:127.0.0.1:1234".
        """
        values = {name: value for name, value in metadata if isinstance(value, str)}
        for header in KEY_HEADERS:
            if (key := values.get(header, "")) and key.rpartition(" ")[2].lower() not in _PLACEHOLDERS:
                return self._name("key", key)
        return self._name("address", self._address(values.get(ADDRESS_HEADER, ""), peer))

    def of_tenant(self, tenant: str) -> str:
        """Returns an opaque name for all clients of a tenant: together they get one share."""
        return self._name("tenant", tenant)

    def _address(self, forwarded: str, peer: str) -> str:
        address = _peer_address(peer)
        if forwarded and self.is_proxy(peer):
            address = forwarded
        return _host(address)

    def is_proxy(self, peer: str) -> bool:
        """Whether a peer may say who it speaks for. Peers without an address are Unix sockets, which are local."""
        address = _peer_address(peer)
        try:
            parsed = ip_address(address)
        except ValueError:
            return address.startswith("unix")
        mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
        return any((mapped or parsed) in network for network in self._trusted_proxies)

    def _name(self, kind: str, value: str) -> str:
        return hashlib.blake2b(f"{kind}:{value}".encode(), key=self._salt, digest_size=16).hexdigest()


def _peer_address(peer: str) -> str:
    """Returns the address of a peer without its port. Other peers, such as Unix sockets, are returned as they are."""
    scheme, _, rest = peer.partition(":")
    if scheme not in ("ipv4", "ipv6"):
        return peer
    return unquote(rest).rpartition(":")[0].strip("[]").partition("%")[0]


def _host(address: str) -> str:
    """Returns what identifies the host of an address: an IPv4 address, or the network of an IPv6 one."""
    try:
        parsed = ip_address(address.strip().strip("[]"))
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(IPv6Network((parsed, _IPV6_PREFIX), strict=False))
