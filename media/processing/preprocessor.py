"""Reader of a checkpoint's preprocessor files.

transformers 5 writes how all kinds of media are processed to `processor_config.json`, which precedes the older files.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL.Image import Resampling

PREPROCESSOR = "preprocessor_config.json"
VIDEO_PREPROCESSOR = "video_preprocessor_config.json"
PROCESSOR = "processor_config.json"


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
    """Reads how a checkpoint processes images. Some older processors have fields in `processor_config.json`, too.

    Raises:
        ValueError: both files are missing, or one is not JSON.
    """
    whole = read_json(path / PROCESSOR, is_optional=True)
    if nested := whole.get("image_processor"):
        return nested
    return {**whole, **read_json(path / PREPROCESSOR, is_optional="image_mean" in whole)}


def read_video_processor(
    path: Path, images: Mapping[str, Any], resampling: Resampling | None = Resampling.BICUBIC
) -> dict[str, Any]:
    """Reads and checks how a checkpoint processes videos; {} if it does not say.

    Args:
        images: what it says about images.
        resampling: see `check_processor`.

    Raises:
        ValueError: a file is not JSON, a value is not supported, or frames are not normalized like images.
    """
    nested = read_json(path / PROCESSOR, is_optional=True).get("video_processor")
    videos: dict[str, Any] = nested or read_json(path / VIDEO_PREPROCESSOR, is_optional=True)
    check_processor(videos, VIDEO_PREPROCESSOR, resampling)
    for name in ("image_mean", "image_std"):
        if name in videos and videos[name] != images.get(name):
            raise ValueError(f"{VIDEO_PREPROCESSOR}: '{name}': expected that of {PREPROCESSOR}, got {videos[name]!r}")
    return videos


def read_feature_extractor(path: Path, *, is_optional: bool = False) -> dict[str, Any]:
    """Reads how a checkpoint processes audio; {} if it is optional and not said.

    Raises:
        ValueError: both files are missing, or one is not JSON.
    """
    whole = read_json(path / PROCESSOR, is_optional=True)
    nested = whole.get("feature_extractor") or whole.get("audio_processor")
    return nested or read_json(path / PREPROCESSOR, is_optional=is_optional)


def positive(name: str, value: object) -> int:
    """Returns a configuration value that must be a positive integer. Raises ValueError."""
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"preprocessor configuration: '{name}': expected a positive integer, got {value!r}")
    return value


def ordered(document: Mapping[str, Any], file: str, least: tuple[str, int], most: tuple[str, int]) -> tuple[int, int]:
    """Returns two fields of a document, positive integers of which the first is no larger. Raises ValueError.

    Args:
        least: name and default of the first field.
        most: those of the second.
    """
    low, high = (positive(name, document.get(name, default)) for name, default in (least, most))
    if low > high:
        raise ValueError(f"{file}: '{least[0]}': expected at most {high}, got {low}")
    return low, high


def check_fields(document: Mapping[str, Any], file: str, expected: Mapping[str, Any]) -> None:
    """Raises ValueError if a field has another than its only supported value, which is that of documents without it."""
    for name, value in expected.items():
        if (found := document.get(name, value)) != value:
            raise ValueError(f"{file}: '{name}': expected {value!r}, got {found!r}")


def check_resampling(config: Mapping[str, Any], expected: Resampling = Resampling.BICUBIC) -> None:
    """Raises ValueError for another resampling than the expected one, which is that of a document without the field."""
    resample = config.get("resample", expected)
    if resample != expected:
        name = f"{expected.value} ({expected.name.lower()})"
        raise ValueError(f"preprocessor configuration: 'resample': expected {name}, got {resample!r}")


def check_processor(
    processor: Mapping[str, Any], file: str = PREPROCESSOR, resampling: Resampling | None = Resampling.BICUBIC
) -> None:
    """Checks what all processors of images and frames do.

    Args:
        file: name of the file, for errors.
        resampling: the only supported one; None: the family has several.

    Raises:
        ValueError: a value is not supported.
    """
    if resampling is not None:
        check_resampling(processor, resampling)
    for name in ("do_resize", "do_rescale", "do_normalize"):
        if processor.get(name, True) is not True:
            raise ValueError(f"{file}: '{name}': expected true, got {processor[name]!r}")
    if not math.isclose(factor := processor.get("rescale_factor", 1 / 255), 1 / 255, rel_tol=1e-6):
        raise ValueError(f"{file}: 'rescale_factor': expected 1/255, got {factor!r}")
