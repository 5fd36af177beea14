"""Messages of one turn of the event loop reach a client together."""

import socket

import pytest

from glimpse.server.rpc.writes import corked


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_packets_to_a_connection_wait_until_the_block_ends(host: str) -> None:
    family, scheme = (socket.AF_INET6, "ipv6:%5B::1%5D") if ":" in host else (socket.AF_INET, "ipv4:127.0.0.1")
    with socket.create_server((host, 0), family=family) as listener, socket.socket(family) as client:
        client.connect(listener.getsockname())
        server, (_, port, *_) = listener.accept()
        with server:
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with corked([f"{scheme}:{port}", "ipv4:127.0.0.1:1", "unix:"]):
                server.sendall(b"first")
                server.sendall(b"second")
                with pytest.raises(BlockingIOError):
                    client.recv(100, socket.MSG_DONTWAIT)
            assert client.recv(100) == b"firstsecond"
            server.sendall(b"later")  # the block closed no descriptor
            assert client.recv(100) == b"later"


def test_sockets_whose_addresses_are_numbers_are_no_clients() -> None:
    """Others open such a socket while they resolve a name."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW), corked(["ipv4:127.0.0.1:2"]):
        pass
