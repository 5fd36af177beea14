"""What tests of `LLM` share. A file names what makes a checkpoint of its own, `CHECKPOINT`, and options, `OPTIONS`."""

from pathlib import Path

import pytest

from glimpse.offline.llm import LLM
from tests.engine.offline.llm_inputs import load


@pytest.fixture(scope="module")
def llm(request: pytest.FixtureRequest, checkpoint: Path) -> LLM:
    return load(checkpoint, **getattr(request.module, "OPTIONS", {}))
