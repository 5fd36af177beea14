"""What tests of `LLM` share. A file with a checkpoint of its own names what makes it: `CHECKPOINT`."""

from pathlib import Path

import pytest

from glimpse.offline.llm import LLM
from tests.engine.offline.llm_inputs import load


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> LLM:
    return load(checkpoint)
