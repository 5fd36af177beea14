"""What the oracles of model families share. A file with a checkpoint of its own has a fixture `checkpoint`."""

from pathlib import Path

import pytest

from tests.engine.harness import Harness


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint: Path) -> Path:
    return tiny_checkpoint


@pytest.fixture(scope="module")
def harness(checkpoint: Path) -> Harness:
    return Harness(checkpoint)
