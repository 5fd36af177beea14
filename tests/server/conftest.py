"""What tests of the server share: a running one for those that only send requests."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from glimpse.v1 import chat_pb2_grpc
from tests.e2e.stack import Served
from tests.server.serving import served


@pytest.fixture(scope="session")
def shared_server(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    names = ("--served-model-name=tiny", "--served-model-name=small/tiny")
    with served(tiny_checkpoint, tmp_path_factory.mktemp("served"), *names) as server:
        yield server


@pytest.fixture
def channel(shared_server: Served) -> Iterator[grpc.Channel]:
    with shared_server.channel() as opened:
        yield opened


@pytest.fixture
def chat(channel: grpc.Channel) -> chat_pb2_grpc.ChatServiceStub:
    return chat_pb2_grpc.ChatServiceStub(channel)
