"""Checks `preprocessor_config.json` of CLIP's kind, which many families have."""

import math
from collections.abc import Mapping
from typing import Any

from PIL.Image import Resampling

from glimpse.media.processing.preprocessor import check_resampling

PREPROCESSOR = "preprocessor_config.json"


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


def check_square(processor: Mapping[str, Any], name: str, side: int, file: str = PREPROCESSOR) -> None:
    """Raises ValueError if a size is not the encoder's."""
    size = processor.get(name)
    if size not in (side, {"height": side, "width": side}):
        raise ValueError(f"{file}: '{name}': expected the encoder's {side} pixels in height and width, got {size!r}")
