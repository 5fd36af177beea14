"""The oracle of tests: transformers' Gemma 4 with images, videos and audio. The engine never imports this."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    Gemma4AudioFeatureExtractor,
    Gemma4ForConditionalGeneration,
    Gemma4ImageProcessorPil,
    Gemma4UnifiedAudioFeatureExtractor,
    masking_utils,
    models,
)

from glimpse.engine.checkpoint.model_config.model import read_json
from tests.checkpoints.gemma4 import IMAGE_PROCESSOR, PATCH, POOL, TOKEN_IDS, WAVE
from tests.oracles.answers import Answer, generate

create_masks_for_generate = masking_utils.create_masks_for_generate
unified = models.gemma4_unified.modeling_gemma4_unified


@cache
def load_oracle(path: Path) -> Any:
    """Returns the reference model in float32."""
    kind = unified.Gemma4UnifiedForConditionalGeneration if is_unified(path) else Gemma4ForConditionalGeneration
    return kind.from_pretrained(path, dtype=torch.float32).eval()


def _make_masks(*, block_sequence_ids: torch.Tensor | None = None, **others: Any) -> Any:
    """Makes the masks of Google's own code, where sliding layers alone attend to later tokens of an image.

    `Gemma4UnifiedForConditionalGeneration.create_masks_for_generate` of transformers does so too, but not its forward
    without a mask, which has those before transformers' pull request 46850.
    """
    if block_sequence_ids is None or not (block_sequence_ids >= 0).any():
        return create_masks_for_generate(**others)
    return unified.create_masks_for_vision_model(block_sequence_ids=block_sequence_ids, **others)


setattr(unified, "create_masks_for_generate", _make_masks)  # noqa: B010 - it is a function of another type


def is_unified(path: Path) -> bool:
    """Whether the checkpoint has no encoders."""
    return read_json(path / "config.json")["model_type"] == "gemma4_unified"


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
    has_no_encoder = is_unified(path)
    values = _pixels([each for each in media if each.ndim == 3], "pixel_values", "image", is_unified=has_no_encoder)
    if videos := [each for each in media if each.ndim == 4]:
        frames = [frame for video in videos for frame in video]
        values |= _pixels(frames, "pixel_values_videos", "video", is_unified=has_no_encoder)
        values["num_frames_per_video"] = torch.tensor([len(video) for video in videos])
    if heard := [each for each in media if each.ndim == 1]:
        values |= (wave_extractor if has_no_encoder else feature_extractor)()(heard, return_tensors="pt")
    return generate(load_oracle(path), prompt, num_tokens, mm_token_type_ids=kinds, **values)


_KINDS = ("image", "video", "audio")
"""The kinds of tokens after text."""


@cache
def feature_extractor() -> Any:
    """Returns the reference extractor of audio's features."""
    return Gemma4AudioFeatureExtractor()


@cache
def wave_extractor() -> Any:
    """Returns the reference extractor of checkpoints without encoders."""
    return Gemma4UnifiedAudioFeatureExtractor(feature_size=WAVE, audio_samples_per_token=WAVE)


def _pixels(images: Sequence[np.ndarray], name: str, kind: str, *, is_unified: bool) -> dict[str, torch.Tensor]:
    """Returns what the reference processor makes of images that need no resizing, whatever their number of tokens.

    Args:
        is_unified: a patch is a token, and otherwise a square of `POOL`² patches.
    """
    if not images:
        return {}
    side, multiple = (PATCH * POOL, 1) if is_unified else (PATCH, POOL**2)
    most = max(image.shape[0] * image.shape[1] for image in images) // side**2
    most += -most % multiple
    values, positions = torch.zeros(len(images), most, 3 * side**2), torch.full((len(images), most, 2), -1)
    for index, image in enumerate(images):
        rows, columns = image.shape[0] // side, image.shape[1] // side
        cut = torch.from_numpy(image).float().view(rows, side, columns, side, 3).transpose(1, 2) / 255
        values[index, : rows * columns] = cut.reshape(rows * columns, -1)
        places = np.stack(np.meshgrid(np.arange(columns), np.arange(rows)), axis=-1).reshape(-1, 2)
        positions[index, : rows * columns] = torch.from_numpy(places)
    return {name: values, f"{kind}_position_ids": positions}
