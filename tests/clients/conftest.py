"""The clients, each started once, and a watch on where they turn to."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.clients.programs import Program


@pytest.fixture(scope="session")
def outside() -> Iterator[str]:
    """The proxy by which a client would get to other machines. None may try."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.setblocking(False)
        with pytest.raises(BlockingIOError):
            listening.accept()


@pytest.fixture(scope="session")
def program(outside: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Program]]:
    """Starts a client the first time that it is asked for."""
    running: dict[str, Program] = {}
    with ExitStack() as endings:

        def start(client: str) -> Program:
            if client not in running:
                running[client] = Program(client, proxy=outside, log=tmp_path_factory.mktemp("client") / "log")
                endings.callback(running[client].end)
            return running[client]

        yield start
