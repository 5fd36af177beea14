"""Classification of IP addresses as public or not. Pure functions, independent of host names and settings.

A server may connect to a public address on behalf of any client. The tables are written out because the meaning of
`ipaddress.is_global` changes between Python releases. Source: IANA's registries of special-purpose addresses.
"""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

IPAddress = IPv4Address | IPv6Address

_IPV4_NOT_PUBLIC = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # "this host"; Linux connects to loopback
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT; the metadata service of some clouds
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # looks public, but is internal to one large cloud
        "169.254.0.0/16",  # link-local: the metadata service of most clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays from IPv6
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
    )
)

# All publicly routed IPv6 addresses. Addresses outside are loopback, unspecified, unique-local, link-local, site-local,
# multicast, or embedded IPv4 addresses (::ffff:0:0/96, ::/96, 64:ff9b::/96).
_IPV6_PUBLIC = IPv6Network("2000::/3")

_IPV6_NOT_PUBLIC = tuple(
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments, including Teredo (which embeds an IPv4 address)
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4 (which embeds an IPv4 address)
        "3fff::/20",  # documentation
    )
)


def is_public(address: IPAddress) -> bool:
    """Returns whether the address belongs to the public internet and to nothing else."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _IPV4_NOT_PUBLIC)
    return address in _IPV6_PUBLIC and not any(address in network for network in _IPV6_NOT_PUBLIC)
