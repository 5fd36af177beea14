"""The oracle of tests: transformers' Qwen2-VL, Qwen2.5-VL and Qwen3-VL, used as documented by transformers.

The engine never imports this.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import Qwen2VLImageProcessorPil

from glimpse.engine.protocol.media import MediaSpan
from glimpse.media.kind import MediaKind
from tests.oracles.answers import Answer, generate, load_oracle

TOKEN_TYPES = {MediaKind.IMAGE: 1, MediaKind.VIDEO: 2}


def image_processor(path: Path) -> Any:
    """Returns the reference image processor without resizing."""
    return Qwen2VLImageProcessorPil.from_pretrained(path, do_resize=False)


def token_types(num_tokens: int, spans: Sequence[MediaSpan]) -> Tensor:
    """Returns int64 [1, tokens]: 0 for text, 1 for images, 2 for videos, as the reference model requires."""
    types = torch.zeros(1, num_tokens, dtype=torch.long)
    for span in spans:
        for offset, length in span.runs:
            types[:, span.start + offset : span.start + offset + length] = TOKEN_TYPES[span.kind]
    return types


def grids(spans: Sequence[MediaSpan], kind: MediaKind) -> Tensor | None:
    """Returns int64 [media, 3], or None if there are no media of this kind."""
    found = [span.grid for span in spans if span.kind is kind]
    return torch.tensor(found) if found else None


def seconds_per_grid(path: Path, spans: Sequence[MediaSpan]) -> dict[str, Tensor]:
    """Returns the reference model's argument for seconds per temporal patch, float32 [videos], if it has one."""
    rate = getattr(load_oracle(path).config.vision_config, "tokens_per_second", None)
    steps = [span.mrope_time_interval for span in spans if span.kind is MediaKind.VIDEO]
    return {} if rate is None else {"second_per_grid_ts": torch.tensor(steps) / rate}


def video_patches(path: Path, frames: np.ndarray) -> Tensor:
    """Returns the patches of the reference video processor for [frames, height, width, 3].

    Uses the image processor, because the video processor requires torchvision. Patches of an image contain it twice;
    patches of a video contain two consecutive frames, and the last frame is repeated if their number is odd.
    """
    padded = np.concatenate([frames, frames[-1:]]) if len(frames) % 2 else frames
    process = image_processor(path)
    shape = (-1, 3, 2, process.patch_size**2)
    doubled = [process([frame], return_tensors="pt")["pixel_values"].view(shape) for frame in padded]
    pairs = [
        torch.stack([first[:, :, 0], second[:, :, 1]], dim=2)
        for first, second in zip(doubled[::2], doubled[1::2], strict=True)
    ]
    return torch.cat(pairs).flatten(1)


@torch.inference_mode()
def greedy_answer(
    path: Path, prompt: Sequence[int], spans: Sequence[MediaSpan], images: Sequence[np.ndarray], num_tokens: int
) -> Answer:
    """Continues a prompt with media that need no resizing.

    `images` are uint8, one for each span: [height, width, 3] for an image, [frames, height, width, 3] for a video.
    """
    media: dict[str, Any] = {}
    if spans:
        media["mm_token_type_ids"] = token_types(len(prompt), spans)
    image_arrays = [image for image, span in zip(images, spans, strict=True) if span.kind is MediaKind.IMAGE]
    if image_arrays:
        media |= image_processor(path)(image_arrays, return_tensors="pt")
    videos = [image for image, span in zip(images, spans, strict=True) if span.kind is MediaKind.VIDEO]
    if videos:
        media["pixel_values_videos"] = torch.cat([video_patches(path, video) for video in videos])
        media["video_grid_thw"] = grids(spans, MediaKind.VIDEO)
        media |= seconds_per_grid(path, spans)
    return generate(load_oracle(path), prompt, num_tokens, **media)


@torch.inference_mode()
def embeddings(path: Path, image: np.ndarray) -> tuple[Tensor, Tensor]:
    """Returns the reference encoder's output for an image or video without resizing, [tokens, hidden], and its grid.

    `image` is uint8, [height, width, 3] for an image, [frames, height, width, 3] for a video.
    """
    *frames, height, width, _ = image.shape
    grid = torch.tensor([[-(-sum(frames) // 2) or 1, height // 14, width // 14]])
    if frames:
        patches = video_patches(path, image)
    else:
        patches = image_processor(path)([image], return_tensors="pt")["pixel_values"]
    return load_oracle(path).model.visual(patches, grid_thw=grid).pooler_output, grid
