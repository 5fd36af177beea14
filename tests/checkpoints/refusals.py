"""Configurations that are refused."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.model_config.model import read_json
from glimpse.engine.errors import CheckpointError
from tests.checkpoints.files import write_changed_config


def assert_refused(folder: Path, config: Mapping[str, Any], message: str, **fields: Any) -> None:
    """Writes `config.json` into a folder, with fields changed as by `write_changed_config`. Fails unless it is refused
    with words that match `message`."""
    write_changed_config(folder, config, **fields)
    with pytest.raises(CheckpointError, match=message):
        load_model_config(folder)


def refused(*cases: tuple[Mapping[str, Any], str]) -> Callable[..., None]:
    """Returns a test that the checkpoint of a file is refused with each change of fields, in words that match. A field
    that becomes `...` is left out."""

    @pytest.mark.parametrize(("fields", "message"), cases)
    def test(tmp_path: Path, checkpoint: Path, fields: Mapping[str, Any], message: str) -> None:
        config, left_out = read_json(checkpoint / "config.json"), [name for name in fields if fields[name] is ...]
        kept = {name: value for name, value in config.items() if name not in left_out}
        assert_refused(tmp_path, kept, message, **{name: fields[name] for name in fields if name not in left_out})

    return test
