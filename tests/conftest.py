"""What tests of several parts share: one tiny checkpoint, and manners on a small machine."""

from pathlib import Path

import pytest
import torch
from hypothesis import settings

from tests.checkpoints import make_checkpoint

torch.set_num_threads(1)
# How long an example takes says nothing on a machine where others compute.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float32 Qwen2-VL of 2 layers and width 64 with random weights; `tests.checkpoints` tells what it answers."""
    return make_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny")
