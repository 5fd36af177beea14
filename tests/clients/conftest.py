"""Two servers, one with the embedded model and one that says what it is told, and the clients that ask them."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.clients.programs import Program
from tests.e2e.stack import Stack, start_saying_stack, start_stack


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    # float32: random weights turn bfloat16's rounding, which differs with the size of a chunk, into other words.
    running = start_stack(tmp_path_factory.mktemp("embedded"), "--dtype=float32")
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="session")
def saying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    running = start_saying_stack(tmp_path_factory.mktemp("saying"))
    yield running
    assert running.stop() == 0


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
