"""What the reference processor of Qwen3-VL writes for media, and what the reference model answers."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from transformers import Qwen3VLProcessor

from glimpse.engine.protocol.media import MediaSpan
from glimpse.media.kind import MediaKind
from tests.engine.checkpoint.text.reference import reference_tokenizer
from tests.engine.harness import PLACEHOLDER_IDS
from tests.oracles.qwen_vl import Answer, greedy_answer

START, END = "<|vision_start|>", "<|vision_end|>"
IMAGE_PAD, VIDEO_PAD = "<|image_pad|>", "<|video_pad|>"
WRAPPED_VIDEO = f"{START}{VIDEO_PAD}{END}"
SIDE = 32
"""Side of a token in pixels."""


def write_media(text: str, media: Sequence[tuple[np.ndarray, Sequence[float]]]) -> str:
    """Returns a rendered prompt with its media, as the processor of transformers 4.57 writes them.

    That of transformers 5 leaves the marks around a video's placeholder where they are.

    Args:
        media: in the order of the prompt: [height, width, 3] of an image, or [frames, height, width, 3] of a video and
            the seconds of its frames.
    """
    for pixels, seconds in media:
        if pixels.ndim == 3:
            height, width, _ = pixels.shape
            text = text.replace(IMAGE_PAD, "\0" * (height * width // SIDE**2), 1)
        else:
            text = text.replace(WRAPPED_VIDEO, _video_text(pixels, seconds).replace(VIDEO_PAD, "\1"), 1)
    return text.replace("\0", IMAGE_PAD).replace("\1", VIDEO_PAD)


def _video_text(pixels: np.ndarray, seconds: Sequence[float]) -> str:
    num_frames, height, width, _ = pixels.shape
    grid = np.array([[-(-num_frames // 2), height // 16, width // 16]])
    # Times are indices of frames at a rate; with 1000 frames in a second any time is one.
    metadata = SimpleNamespace(fps=1000.0, frames_indices=[round(1000 * second) for second in seconds])
    processor: Any = SimpleNamespace(
        video_processor=SimpleNamespace(merge_size=2, temporal_patch_size=2),
        vision_start_token=START,
        vision_end_token=END,
        video_token=VIDEO_PAD,
        _calculate_timestamps=partial(Qwen3VLProcessor._calculate_timestamps, None),  # type: ignore[arg-type]
    )
    inputs = {"video_grid_thw": grid, "video_metadata": [metadata]}
    return Qwen3VLProcessor.replace_video_token(processor, inputs, 0)


def encode(tokenizer: Any, text: str) -> list[int]:
    """Returns the token ids of a text in transformers, with a raw tokenizer."""
    return reference_tokenizer(tokenizer)(text)["input_ids"]


def answer(path: Path, token_ids: Sequence[int], media: Sequence[np.ndarray], num_tokens: int) -> Answer:
    """Returns the reference model's greedy answer to a prompt with media that need no resizing."""
    return greedy_answer(path, token_ids, spans_of(token_ids, media), media, num_tokens)


def spans_of(token_ids: Sequence[int], media: Sequence[np.ndarray]) -> list[MediaSpan]:
    """Returns where the media of a prompt are, from its placeholder tokens."""
    runs = iter(_runs(token_ids))
    spans: list[MediaSpan] = []
    for pixels in media:
        *frames, height, width, _ = pixels.shape
        grid = (-(-sum(frames) // 2) or 1, height // 16, width // 16)
        own = [next(runs) for _ in range(grid[0])]
        start = own[0][0]
        spans.append(
            MediaSpan(
                kind=MediaKind.VIDEO if frames else MediaKind.IMAGE,
                start=start,
                num_tokens=own[-1][0] + own[-1][1] - start,
                runs=tuple((place - start, length) for place, length in own),
                key=bytes(32),
                grid=grid,
            )
        )
    return spans


def _runs(token_ids: Sequence[int]) -> list[tuple[int, int]]:
    """Returns (start, length) of each run of placeholder tokens."""
    pads = set(PLACEHOLDER_IDS.values())
    runs: list[tuple[int, int]] = []
    for place, token_id in enumerate(token_ids):
        if token_id not in pads:
            continue
        if runs and sum(runs[-1]) == place:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((place, 1))
    return runs
