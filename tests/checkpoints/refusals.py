"""Configurations that are refused."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.errors import CheckpointError
from tests.checkpoints.qwen2_vl import write_changed_config


def assert_refused(folder: Path, config: Mapping[str, Any], message: str, **fields: Any) -> None:
    """Writes `config.json` into a folder, with fields changed as by `write_changed_config`. Fails unless it is refused
    with words that match `message`."""
    write_changed_config(folder, config, **fields)
    with pytest.raises(CheckpointError, match=message):
        load_model_config(folder)
