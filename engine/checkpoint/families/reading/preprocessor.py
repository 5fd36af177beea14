"""Checks what a checkpoint's preprocessor files say in CLIP's kind, which many families have."""

from collections.abc import Mapping
from typing import Any

from PIL.Image import Resampling

from glimpse.media.native.library import RESAMPLINGS
from glimpse.media.processing.preprocessor import PREPROCESSOR


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
