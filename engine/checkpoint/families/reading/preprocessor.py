"""Checks `preprocessor_config.json` and `video_preprocessor_config.json` of CLIP's kind, which many families have."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL.Image import Resampling

from glimpse.media.native.library import RESAMPLINGS
from glimpse.media.processing.preprocessor import check_resampling, read_json

PREPROCESSOR = "preprocessor_config.json"
VIDEO_PREPROCESSOR = "video_preprocessor_config.json"


def check_processor(
    processor: Mapping[str, Any], file: str = PREPROCESSOR, resampling: Resampling = Resampling.BICUBIC
) -> None:
    """Checks what all processors of CLIP's kind do.

    Raises:
        ValueError: a value is not supported.
    """
    check_resampling(processor, resampling)
    for name in ("do_resize", "do_rescale", "do_normalize"):
        if processor.get(name, True) is not True:
            raise ValueError(f"{file}: '{name}': expected true, got {processor[name]!r}")
    if not math.isclose(factor := processor.get("rescale_factor", 1 / 255), 1 / 255, rel_tol=1e-6):
        raise ValueError(f"{file}: 'rescale_factor': expected 1/255, got {factor!r}")


def resampling_of(processor: Mapping[str, Any], default: Resampling) -> Resampling:
    """Returns the filter for resizing. Raises ValueError if it is not supported."""
    resample = processor.get("resample", default)
    if resample not in RESAMPLINGS:
        raise ValueError(
            "preprocessor configuration: 'resample': expected 1 (Lanczos), 2 (bilinear) or 3 (bicubic),"
            f" got {resample!r}"
        )
    return Resampling(resample)


def check_square(processor: Mapping[str, Any], name: str, side: int, file: str = PREPROCESSOR) -> None:
    """Raises ValueError if a size is not the encoder's."""
    size = processor.get(name)
    if size not in (side, {"height": side, "width": side}):
        raise ValueError(f"{file}: '{name}': expected the encoder's {side} pixels in height and width, got {size!r}")


def read_video_processor(path: Path, images: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Returns what a checkpoint says about videos: `video_preprocessor_config.json`, and `processor_config.json`, where
    transformers 5 writes it; None if it says nothing.

    Args:
        path: folder of the checkpoint.
        images: `preprocessor_config.json`.

    Raises:
        ValueError: a value is not supported, or frames are not normalized like images.
    """
    of_processor = read_json(path / "processor_config.json", is_optional=True).get("video_processor", {})
    videos = {**of_processor, **read_json(path / VIDEO_PREPROCESSOR, is_optional=True)}
    if not videos:
        return None
    check_processor(videos, VIDEO_PREPROCESSOR)
    for name in ("image_mean", "image_std"):
        if name in videos and videos[name] != images.get(name):
            raise ValueError(f"{VIDEO_PREPROCESSOR}: '{name}': expected that of {PREPROCESSOR}, got {videos[name]!r}")
    return videos
