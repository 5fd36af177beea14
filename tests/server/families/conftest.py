"""A stack with the checkpoint of the file, which names what makes it (`CHECKPOINT`) or has a fixture."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc
import pytest

from tests.e2e.stack import OPTIONS, Stack, start_stack

FLAGS = ("--served-model-name=model", "--dtype=float32", "--enable-mm-embeds")


@pytest.fixture(scope="module")
def flags() -> Sequence[str]:
    """Further flags of the server."""
    return ()


@pytest.fixture(scope="module")
def stack(checkpoint: Path, flags: Sequence[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("stack")
    running = start_stack(folder, f"--model={checkpoint}", *FLAGS, *flags)
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def channel(stack: Stack) -> Iterator[grpc.Channel]:
    """A channel to the server, past Envoy."""
    with grpc.insecure_channel(stack.target, options=OPTIONS) as opened:
        yield opened
