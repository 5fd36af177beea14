"""What the oracles of model families share. A file with a checkpoint of its own names what makes it: `CHECKPOINT`."""

from pathlib import Path

import pytest

from tests.engine.harness import Harness


@pytest.fixture(scope="module")
def harness(checkpoint: Path) -> Harness:
    return Harness(checkpoint)
