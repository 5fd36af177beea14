"""What tests of several parts share: a tiny checkpoint, running stacks, and manners on a small machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from tests.checkpoints import make_checkpoint
from tests.e2e.stack import Stack, start_saying_stack, start_stack

torch.set_num_threads(1)
# How long an example takes says nothing on a machine where others compute.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float32 Qwen2-VL of 2 layers and width 64 with random weights; `tests.checkpoints` tells what it answers."""
    return make_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny")


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One with the embedded model."""
    # float32: random weights turn bfloat16's rounding, which differs with the size of a chunk, into other words.
    running = start_stack(tmp_path_factory.mktemp("stack"), "--dtype=float32", "--enable-mm-embeds")
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="session")
def saying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One that says what it is told."""
    running = start_saying_stack(tmp_path_factory.mktemp("saying"))
    yield running
    assert running.stop() == 0
