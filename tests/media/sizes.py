"""Sizes of Qwen2-VL's media, and processing with other sizes."""

from dataclasses import replace
from math import prod
from typing import TypeVar

import msgspec

from glimpse.media.processing.image import Image, ImageProcessing
from glimpse.media.processing.video import Video, VideoProcessing

Processing = TypeVar("Processing", ImageProcessing, VideoProcessing)


def resized_by(processing: Processing, **changes: int) -> Processing:
    """Returns a copy with other parameters of its recipe."""
    return replace(processing, sizing=msgspec.structs.replace(processing.sizing, **changes))


def num_tokens(medium: Image | Video) -> int:
    """Returns the number of squares of four patches."""
    return prod(medium.grid) // 4
