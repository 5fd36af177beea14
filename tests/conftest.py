"""What tests of several parts share: one tiny checkpoint, and manners on a small machine."""

from pathlib import Path

import pytest
import torch

from tests.checkpoints import make_checkpoint

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float32 Qwen2-VL of 2 layers and width 64 with random weights; `tests.checkpoints` tells what it answers."""
    return make_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny")
