"""Ports that are kept for several processes, with real sockets."""

import socket

import pytest

from glimpse.server.processes.ports import ReservedPort


def listener(port: int) -> socket.socket:
    """Returns a socket that listens as a front end does."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listening.bind(("127.0.0.1", port))
    listening.listen()
    return listening


def test_front_ends_listen_on_a_reserved_port() -> None:
    reserved = ReservedPort.reserve("127.0.0.1", 0)
    with listener(reserved.port) as first, listener(reserved.port) as second:
        assert first.getsockname() == second.getsockname() == ("127.0.0.1", reserved.port)
        with socket.create_connection(("127.0.0.1", reserved.port), timeout=5):
            pass
    reserved.close()


def test_nobody_else_gets_a_reserved_port() -> None:
    reserved = ReservedPort.reserve("127.0.0.1", 0)
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", reserved.port))
    with pytest.raises(OSError, match="in use"):
        ReservedPort.reserve("127.0.0.1", reserved.port)
    reserved.close()
    ReservedPort.reserve("127.0.0.1", reserved.port).close()


def test_port_of_another_program_is_refused_even_if_that_would_share_it() -> None:
    with listener(0) as other, pytest.raises(OSError, match="in use"):
        ReservedPort.reserve("127.0.0.1", other.getsockname()[1])


def test_a_name_reserves_all_its_addresses() -> None:
    reserved = ReservedPort.reserve("localhost", 0)
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", reserved.port))
    reserved.close()
