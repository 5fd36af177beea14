"""Reader of a checkpoint's preprocessor files."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL.Image import Resampling


def read_json(path: Path, *, is_optional: bool = False) -> dict[str, Any]:
    """Reads a JSON file; {} if it is optional and missing. Raises ValueError if it is missing, or not JSON."""
    if is_optional and not path.exists():
        return {}
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise ValueError(f"the checkpoint has no {path.name}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the checkpoint's {path.name} is not JSON: {error}") from error


def read_image_processor(path: Path) -> dict[str, Any]:
    """Reads how a checkpoint processes images: `preprocessor_config.json`, and `processor_config.json`, where
    transformers 5 writes it and where fields of older processors are.

    Raises:
        ValueError: both files are missing, or one is not JSON.
    """
    of_processor = read_json(path / "processor_config.json", is_optional=True)
    is_whole = bool(of_processor.keys() & {"image_processor", "image_mean"})
    own = read_json(path / "preprocessor_config.json", is_optional=is_whole)
    return {**of_processor, **of_processor.get("image_processor", {}), **own}


def positive(name: str, value: object) -> int:
    """Returns a configuration value that must be a positive integer. Raises ValueError."""
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"preprocessor configuration: '{name}': expected a positive integer, got {value!r}")
    return value


def check_resampling(config: Mapping[str, Any], expected: Resampling = Resampling.BICUBIC) -> None:
    """Raises ValueError for another resampling than the expected one, which is that of a document without the field."""
    resample = config.get("resample", expected)
    if resample != expected:
        name = f"{expected.value} ({expected.name.lower()})"
        raise ValueError(f"preprocessor configuration: 'resample': expected {name}, got {resample!r}")
