"""Clients are told apart by their keys, else by their addresses, and no one can choose to be another."""

from ipaddress import ip_network

import pytest

from glimpse.server.rpc.client_identity import ClientIdentifier

LOCAL, OTHER = "ipv4:127.0.0.1:40000", "ipv4:192.0.2.7:40000"
FORWARDED = "x-glimpse-client-address"


@pytest.fixture
def clients() -> ClientIdentifier:
    return ClientIdentifier()


@pytest.mark.parametrize("header", ["authorization", "x-api-key"])
def test_key_identifies_a_client_at_any_address(clients: ClientIdentifier, header: str):
    name = clients.identify([(header, "Bearer secret-1")], LOCAL)
    assert clients.identify([(header, "Bearer secret-1"), (FORWARDED, "198.51.100.1")], OTHER) == name
    assert clients.identify([(header, "Bearer secret-2")], LOCAL) != name
    assert clients.identify([], LOCAL) != name


@pytest.mark.parametrize("key", ["Bearer EMPTY", "EMPTY", "Bearer none", ""])
def test_placeholder_keys_do_not_identify(clients: ClientIdentifier, key: str):
    assert clients.identify([("authorization", key)], LOCAL) == clients.identify([], LOCAL)


@pytest.mark.parametrize(
    ("peer", "same"),
    [
        (OTHER, "ipv4:192.0.2.7:50001"),
        ("ipv6:%5B2001:db8::1%5D:40000", "ipv6:[2001:db8::ffff]:1"),
        ("ipv6:%5B::ffff:192.0.2.7%5D:40000", OTHER),
        ("unix:/run/glimpse.sock", "unix:/run/glimpse.sock"),
    ],
)
def test_ports_do_not_tell_clients_apart(clients: ClientIdentifier, peer: str, same: str):
    assert clients.identify([], peer) == clients.identify([], same)


def test_addresses_tell_clients_apart(clients: ClientIdentifier):
    peers = [LOCAL, OTHER, "ipv4:192.0.2.8:40000", "ipv6:%5B2001:db8:0:1::1%5D:1", "ipv6:%5B2001:db8:0:2::1%5D:1"]
    assert len({clients.identify([], peer) for peer in peers}) == len(peers)


@pytest.mark.parametrize("peer", [LOCAL, "ipv6:%5B::1%5D:40000", "ipv6:%5B::ffff:127.0.0.1%5D:1", "unix:/run/x.sock"])
def test_gateway_on_this_host_is_believed(clients: ClientIdentifier, peer: str):
    assert clients.identify([(FORWARDED, "192.0.2.7")], peer) == clients.identify([], OTHER)


def test_other_peers_cannot_choose_their_address(clients: ClientIdentifier):
    assert clients.identify([(FORWARDED, "198.51.100.1")], OTHER) == clients.identify([], OTHER)


def test_trusted_proxies_are_those_listed():
    clients = ClientIdentifier([ip_network("192.0.2.0/24")])
    named = [(FORWARDED, "198.51.100.1")]
    assert clients.identify(named, OTHER) == clients.identify([], "ipv4:198.51.100.1:1")
    assert clients.identify(named, LOCAL) == clients.identify([], LOCAL)


def test_names_reveal_nothing_and_differ_between_processes(clients: ClientIdentifier):
    name = clients.identify([("authorization", "Bearer secret-1")], LOCAL)
    assert "secret" not in name
    assert ClientIdentifier().identify([("authorization", "Bearer secret-1")], LOCAL) != name
