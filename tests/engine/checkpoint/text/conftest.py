"""What tests of the prompts of families share. A file names what makes its checkpoint: `CHECKPOINT`."""

from pathlib import Path

import pytest

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.text.prompt import PromptBuilder, load_prompt_builder


@pytest.fixture(scope="module")
def builder(checkpoint: Path) -> PromptBuilder:
    return load_prompt_builder(checkpoint, load_model_config(checkpoint))
