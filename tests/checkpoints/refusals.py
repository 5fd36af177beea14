"""Configurations that are refused."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.model_config.model import read_json
from glimpse.engine.errors import CheckpointError
from tests.checkpoints.qwen2_vl import write_changed_config


def assert_refused(folder: Path, config: Mapping[str, Any], message: str, **fields: Any) -> None:
    """Writes `config.json` into a folder, with fields changed as by `write_changed_config`. Fails unless it is refused
    with words that match `message`."""
    write_changed_config(folder, config, **fields)
    with pytest.raises(CheckpointError, match=message):
        load_model_config(folder)


def refused(*cases: tuple[Mapping[str, Any], str]) -> Callable[..., None]:
    """Returns a test that the checkpoint of a file is refused with each change of fields, in words that match."""

    @pytest.mark.parametrize(("fields", "message"), cases)
    def test(tmp_path: Path, checkpoint: Path, fields: Mapping[str, Any], message: str) -> None:
        assert_refused(tmp_path, read_json(checkpoint / "config.json"), message, **fields)

    return test
