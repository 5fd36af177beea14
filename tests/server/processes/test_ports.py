"""Ports that are kept for several processes, with real sockets."""

import socket

import pytest

from glimpse.server.processes.ports import reserved_port


def listener(port: int) -> socket.socket:
    """Returns a socket that listens as a front end does."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listening.bind(("127.0.0.1", port))
    listening.listen()
    return listening


def test_front_ends_listen_on_a_reserved_port() -> None:
    with reserved_port("127.0.0.1", 0) as port, listener(port) as first, listener(port) as second:
        assert first.getsockname() == second.getsockname() == ("127.0.0.1", port)
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass


def test_nobody_else_gets_a_reserved_port() -> None:
    with reserved_port("127.0.0.1", 0) as port:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        with pytest.raises(OSError, match="in use"), reserved_port("127.0.0.1", port):
            pass
    with reserved_port("127.0.0.1", port) as again:
        assert again == port


def test_port_of_another_program_is_refused_even_if_that_would_share_it() -> None:
    with (
        listener(0) as other,
        pytest.raises(OSError, match="in use"),
        reserved_port("127.0.0.1", other.getsockname()[1]),
    ):
        pass


def test_a_name_reserves_all_its_addresses() -> None:
    with (
        reserved_port("localhost", 0) as port,
        socket.socket() as other,
        pytest.raises(OSError, match="in use"),
    ):
        other.bind(("127.0.0.1", port))
