"""Normalization of pixels, as a vision encoder was trained with."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glimpse.engine.errors import CheckpointError
from glimpse.media.processing.preprocessor import read_image_processor


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelStatistics:
    """Normalization of pixels in training: (value / 255 - mean) / std, for red, green and blue."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


def read_statistics(path: Path) -> PixelStatistics:
    """Reads the statistics from a checkpoint's `preprocessor_config.json`; see also `read_image_processor`.

    Raises:
        CheckpointError: the file is missing or invalid.
    """
    try:
        processor = read_image_processor(path)
    except ValueError as error:
        raise CheckpointError(str(error)) from error
    return PixelStatistics(mean=_three(processor, "image_mean"), std=_three(processor, "image_std"))


def normalize(patches: Tensor, statistics: PixelStatistics) -> Tensor:
    """[patches, channels, values], uint8 or floats from 0 to 255 → float32 of the same shape."""
    mean = torch.tensor(statistics.mean, device=patches.device)[:, None]
    std = torch.tensor(statistics.std, device=patches.device)[:, None]
    return (patches.float() - 255 * mean) / (255 * std)


def _three(processor: Mapping[str, Any], field: str) -> tuple[float, float, float]:
    if field not in processor:
        raise CheckpointError(f"preprocessor_config.json: missing field {field!r}")
    red, green, blue = processor[field]
    return red, green, blue
