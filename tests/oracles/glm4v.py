"""What the reference processors of GLM-4.1V and GLM-4.6V write for media."""

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from transformers import Glm4vProcessor, Glm46VProcessor

IMAGE, VIDEO = "<|image|>", "<|video|>"
SIDE = 28
"""Side of a token in pixels."""


def write_media(
    text: str,
    media: Sequence[tuple[np.ndarray, Sequence[float]]],
    processor: type[Glm4vProcessor] | type[Glm46VProcessor],
) -> str:
    """Returns a rendered prompt with its media.

    Args:
        media: in the order of the prompt: [height, width, 3] of an image, or [frames, height, width, 3] of a video and
            the seconds of its frames.
    """
    for pixels, seconds in media:
        if pixels.ndim == 3:
            height, width, _ = pixels.shape
            text = text.replace(IMAGE, "\0" * (height * width // SIDE**2), 1)
        else:
            text = text.replace(VIDEO, _video_text(pixels, seconds, processor).replace(IMAGE, "\0"), 1)
    return text.replace("\0", IMAGE)


def _video_text(
    pixels: np.ndarray, seconds: Sequence[float], processor: type[Glm4vProcessor] | type[Glm46VProcessor]
) -> str:
    num_frames, height, width, _ = pixels.shape
    own: Any = SimpleNamespace(video_processor=SimpleNamespace(merge_size=2), image_token=IMAGE)
    own.replace_frame_token_id = partial(processor.replace_frame_token_id, own)
    grid = np.array([[-(-num_frames // 2), height // 14, width // 14]])
    metadata = SimpleNamespace(fps=1.0, timestamps=list(seconds))
    return processor.replace_video_token(own, {"video_grid_thw": grid, "video_metadata": [metadata]}, 0)
