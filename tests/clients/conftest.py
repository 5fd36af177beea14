"""The clients, each started once, and a check that they contact no other machine."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.clients.programs import CLIENTS, OTHERS, SEVERAL, Program


@pytest.fixture(scope="session")
def outside() -> Iterator[str]:
    """A proxy that fails the test if a client tries to reach another machine."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.setblocking(False)
        with pytest.raises(BlockingIOError):
            listening.accept()


@pytest.fixture(scope="session")
def program(outside: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Program]]:
    """Starts the program of each client on first use."""
    running: dict[tuple[str | Path, str], Program] = {}
    with ExitStack() as stack:

        def start(client: str) -> Program:
            command = (CLIENTS | OTHERS).get(client, SEVERAL)
            if command not in running:
                running[command] = Program(*command, proxy=outside, log=tmp_path_factory.mktemp("client") / "log")
                stack.callback(running[command].end)
            return running[command]

        yield start
