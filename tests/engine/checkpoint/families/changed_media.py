"""What a checkpoint says about its media once fields of its files are changed."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.model_config.model import read_json
from glimpse.engine.checkpoint.text.media_inputs import read_media
from glimpse.media.processing.media_processing import MediaProcessing
from tests.checkpoints.files import write_json


def media_of(checkpoint: Path, folder: Path, file: str = "preprocessor_config.json", **changes: Any) -> MediaProcessing:
    """Copies a checkpoint's documents into a folder, with fields of a file changed, and reads its processing of media.

    A field that becomes None is left out.
    """
    for document in checkpoint.glob("*.json"):
        shutil.copy(document, folder)
    fields = read_json(checkpoint / file) | changes
    write_json(folder / file, {name: value for name, value in fields.items() if value is not None})
    return read_media(folder, load_model_config(folder))


def media_refused(*cases: tuple[Mapping[str, Any], str]) -> Callable[..., None]:
    """Returns a test that the preprocessor of a file's checkpoint is refused with each change, in words that match."""

    @pytest.mark.parametrize(("changes", "message"), cases)
    def test(tmp_path: Path, checkpoint: Path, changes: Mapping[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            media_of(checkpoint, tmp_path, **changes)

    return test
