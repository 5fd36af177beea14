"""The oracle of tests: transformers' Gemma 4 with images, videos and audio. The engine never imports this."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.models.gemma4.feature_extraction_gemma4 import Gemma4AudioFeatureExtractor
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.gemma4.modeling_gemma4 import Gemma4ForConditionalGeneration

from tests.checkpoints.gemma4 import IMAGE_PROCESSOR, PATCH, POOL, TOKEN_IDS
from tests.oracles.answers import Answer, generate


@cache
def load_oracle(path: Path) -> Any:
    """Returns the reference model in float32."""
    return Gemma4ForConditionalGeneration.from_pretrained(path, dtype=torch.float32).eval()


@cache
def image_processor() -> Any:
    """Returns the reference image processor."""
    return Gemma4ImageProcessorPil(**IMAGE_PROCESSOR)


@torch.inference_mode()
def greedy_answer(path: Path, prompt: Sequence[int], media: Sequence[np.ndarray], num_tokens: int) -> Answer:
    """Continues a prompt with images in whole tokens, uint8 [height, width, 3], videos with a first axis of frames, and
    audio, float32 [samples]."""
    token_ids = torch.tensor([list(prompt)])
    kinds = sum(kind * (token_ids == TOKEN_IDS[f"<|{name}|>"]) for kind, name in enumerate(_KINDS, 1))
    values = _pixels([each for each in media if each.ndim == 3], "pixel_values", "image")
    if videos := [each for each in media if each.ndim == 4]:
        frames = [frame for video in videos for frame in video]
        values |= _pixels(frames, "pixel_values_videos", "video")
        values["num_frames_per_video"] = torch.tensor([len(video) for video in videos])
    if heard := [each for each in media if each.ndim == 1]:
        values |= feature_extractor()(heard, return_tensors="pt")
    return generate(load_oracle(path), prompt, num_tokens, mm_token_type_ids=kinds, **values)


_KINDS = ("image", "video", "audio")
"""The kinds of tokens after text."""


@cache
def feature_extractor() -> Any:
    """Returns the reference extractor of audio's features."""
    return Gemma4AudioFeatureExtractor()


def _pixels(images: Sequence[np.ndarray], name: str, kind: str) -> dict[str, torch.Tensor]:
    """Returns what the reference processor makes of images that need no resizing, whatever their number of tokens."""
    if not images:
        return {}
    most = max(image.shape[0] * image.shape[1] for image in images) // PATCH**2
    most += -most % POOL**2
    values, positions = torch.zeros(len(images), most, 3 * PATCH**2), torch.full((len(images), most, 2), -1)
    for index, image in enumerate(images):
        rows, columns = image.shape[0] // PATCH, image.shape[1] // PATCH
        cut = torch.from_numpy(image).float().view(rows, PATCH, columns, PATCH, 3).transpose(1, 2) / 255
        values[index, : rows * columns] = cut.reshape(rows * columns, -1)
        places = np.stack(np.meshgrid(np.arange(columns), np.arange(rows)), axis=-1).reshape(-1, 2)
        positions[index, : rows * columns] = torch.from_numpy(places)
    return {name: values, f"{kind}_position_ids": positions}
