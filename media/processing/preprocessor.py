"""Reading a checkpoint's preprocessor files. Knows their JSON, not what the numbers mean."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL.Image import Resampling


def read_json(path: Path) -> dict[str, Any]:
    """Raises ValueError if the file is not there or is not JSON."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise ValueError(f"the checkpoint has no {path.name}") from error
    except ValueError as error:
        raise ValueError(f"the checkpoint's {path.name} is not JSON: {error}") from error


def positive(name: str, value: object) -> int:
    """The value, which must be a whole number above 0. Raises ValueError."""
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"the preprocessor's configuration: {name} is not a positive whole number")
    return value


def check_resampling(config: Mapping[str, Any]) -> None:
    """Raises ValueError unless pictures are to be resized as we do it."""
    if config.get("resample", Resampling.BICUBIC) != Resampling.BICUBIC:
        raise ValueError("the preprocessor's configuration asks for a resampling other than bicubic (3)")
