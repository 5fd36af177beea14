"""The oracle of tests: transformers' LLaVA models. The engine never imports this."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import CLIPImageProcessorPil, LlavaNextImageProcessorPil, LlavaOnevisionImageProcessorPil

from tests.oracles.answers import Answer, generate, load_oracle


@cache
def image_processor(path: Path) -> Any:
    return CLIPImageProcessorPil.from_pretrained(path)


@torch.inference_mode()
def greedy_answer(path: Path, prompt: Sequence[int], images: Sequence[np.ndarray], num_tokens: int) -> Answer:
    """Continues a prompt with images, uint8 [height, width, 3]."""
    media = image_processor(path)(list(images), return_tensors="pt") if images else {}
    return generate(load_oracle(path), prompt, num_tokens, **media)


@cache
def tile_processor(path: Path) -> Any:
    """Returns the reference image processor of LLaVA-OneVision."""
    return LlavaOnevisionImageProcessorPil.from_pretrained(path)


def tiled_pixels(path: Path, image: np.ndarray, *, is_alone: bool = True) -> np.ndarray:
    """Returns what the encoder sees of an image: uint8 [overview and tiles, side, side, 3].

    Args:
        image: uint8 [height, width, 3].
    """
    images = [[image]] if is_alone else [[image, image]]
    return denormalized(path, tile_processor(path)(images, return_tensors="pt").pixel_values[0])


def denormalized(path: Path, pixels: torch.Tensor) -> np.ndarray:
    """Returns the uint8 pixels, channels last, of a reference processor's normalized ones."""
    processor = image_processor(path)
    mean, std = (torch.tensor(values)[:, None, None] for values in (processor.image_mean, processor.image_std))
    return ((pixels * std + mean) * 255).round().to(torch.uint8).movedim(-3, -1).numpy()


def normalized_frames(path: Path, frames: np.ndarray) -> torch.Tensor:
    """uint8 [frames, side, side, 3] → the reference model's argument for a video, [1, frames, 3, side, side]."""
    processor = tile_processor(path)
    mean, std = torch.tensor(processor.image_mean), torch.tensor(processor.image_std)
    return ((torch.from_numpy(frames).float() / 255 - mean) / std).movedim(-1, -3)[None]


@torch.inference_mode()
def onevision_answer(
    path: Path,
    prompt: Sequence[int],
    num_tokens: int,
    *,
    images: Sequence[np.ndarray] = (),
    frames: np.ndarray | None = None,
    are_together: bool = False,
) -> Answer:
    """Continues a prompt.

    Args:
        prompt: token ids, with placeholders for the media.
        images: uint8 [height, width, 3] of any size.
        frames: of a video, uint8 [frames, side, side, 3].
        are_together: images are processed as those of one prompt, without tiles if there are several.
    """
    media: dict[str, Any] = {}
    if images:
        batch = [list(images)] if are_together else [[image] for image in images]
        media |= tile_processor(path)(batch, return_tensors="pt")
    if frames is not None:
        media["pixel_values_videos"] = normalized_frames(path, frames)
    return generate(load_oracle(path), prompt, num_tokens, **media)


@cache
def next_processor(path: Path) -> Any:
    """Returns the reference image processor of LLaVA-NeXT."""
    return LlavaNextImageProcessorPil.from_pretrained(path)


def next_pixels(path: Path, images: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns what LLaVA-NeXT's encoder sees of each image: uint8 [overview and tiles, side, side, 3].

    Args:
        images: of one prompt, uint8 [height, width, 3].
    """
    processor = next_processor(path)
    processed = (processor([image], return_tensors="pt").pixel_values[0] for image in images)
    return [denormalized(path, pixels) for pixels in processed]


@torch.inference_mode()
def next_answer(path: Path, prompt: Sequence[int], images: Sequence[np.ndarray], num_tokens: int) -> Answer:
    """Continues a prompt with images, uint8 [height, width, 3]."""
    media = next_processor(path)(list(images), return_tensors="pt") if images else {}
    return generate(load_oracle(path), prompt, num_tokens, **media)
