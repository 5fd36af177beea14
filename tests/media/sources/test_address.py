"""Classification of public and non-public addresses."""

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glimpse.media.sources.address import is_public
from glimpse.media.sources.policy import FetchPolicy, is_allowed_address

PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "9.255.255.255",
    "11.0.0.0",
    "100.63.255.255",
    "100.128.0.0",
    "126.255.255.255",
    "128.0.0.0",
    "172.15.255.255",
    "172.32.0.0",
    "192.167.255.255",
    "192.169.0.0",
    "223.255.255.255",
    "2001:4860:4860::8888",
    "2606:4700:4700::1111",
    "2a00:1450:4001:80e::200e",
]

NOT_PUBLIC = {
    "unspecified": ["0.0.0.0", "::"],
    "this network": ["0.0.0.1", "0.255.255.255"],
    "loopback": ["127.0.0.1", "127.255.255.255", "127.0.0.53", "::1"],
    "private": [
        "10.0.0.1",
        "10.255.255.255",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.0.1",
        "fc00::1",
        "fd00:ec2::254",
    ],
    "link-local": ["169.254.0.1", "169.254.169.254", "fe80::1", "fe80::1%eth0"],
    "site-local": ["fec0::1"],
    "carrier-grade NAT": ["100.64.0.1", "100.100.100.200", "100.127.255.255"],
    "inside of a cloud": ["168.63.129.16"],
    "multicast": ["224.0.0.1", "239.255.255.255", "ff02::1", "ff0e::1"],
    "reserved": ["240.0.0.1", "255.255.255.255", "4000::1", "100::1"],
    "documentation": ["192.0.2.1", "198.51.100.1", "203.0.113.1", "2001:db8::1", "3fff::1"],
    "protocol assignments and benchmarks": ["192.0.0.170", "192.88.99.1", "198.18.0.1", "198.19.255.255", "2001:2::1"],
    "IPv4 mapped into IPv6": ["::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:8.8.8.8"],
    "IPv4-compatible IPv6": ["::127.0.0.1", "::8.8.8.8"],
    "IPv4 behind a translator": ["64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b::808:808", "64:ff9b:1::7f00:1"],
    "6to4": ["2002:7f00:1::1", "2002:a9fe:a9fe::", "2002:808:808::1"],
    "Teredo": ["2001:0:4136:e378:8000:63bf:3fff:fdd2"],
}


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize(
    ("kind", "address"), [(kind, address) for kind, many in NOT_PUBLIC.items() for address in many]
)
def test_addresses_that_are_not_public(kind: str, address: str) -> None:
    assert not is_public(ip_address(address)), kind


@given(st.ip_addresses())
def test_agrees_with_ipaddress_on_non_public_addresses(address: object) -> None:
    parsed = ip_address(str(address))
    if parsed.is_private or parsed.is_loopback or parsed.is_link_local or parsed.is_multicast or parsed.is_reserved:
        assert not is_public(parsed)


def test_only_configured_networks_are_allowed_in_addition() -> None:
    policy = FetchPolicy(allowed_networks=("10.2.0.0/16", "fd00:1::/32"))
    assert is_allowed_address("10.2.3.4", policy)
    assert is_allowed_address("fd00:1::5", policy)
    assert is_allowed_address("1.1.1.1", policy)
    assert not is_allowed_address("10.3.0.1", policy)
    assert not is_allowed_address("fd00:2::5", policy)


@pytest.mark.parametrize("text", ["localhost", "127.1", "0x7f000001", "2130706433", "", "1.1.1.1 ", "01.1.1.1"])
def test_refuses_text_that_is_not_an_exact_address(text: str) -> None:
    assert not is_allowed_address(text, FetchPolicy())
