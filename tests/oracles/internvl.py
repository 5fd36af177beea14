"""The oracle of tests: transformers' InternVL. The engine never imports this."""

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL.Image
import torch
from tokenizers import Tokenizer
from transformers import GotOcr2ImageProcessorPil, InternVLProcessor, TokenizersBackend

from tests.checkpoints.internvl import MEAN, NUM_TILE_TOKENS, STD
from tests.oracles.answers import Answer, generate, load_oracle


class _WithoutVideos(InternVLProcessor):
    """The reference processor without its part for videos, which requires torchvision."""

    def check_argument_for_proper_class(self, argument_name: str, argument: object) -> None:
        if argument_name != "video_processor":
            super().check_argument_for_proper_class(argument_name, argument)


@torch.inference_mode()
def greedy_answer(path: Path, prompt: Sequence[int], tiles: Sequence[npt.NDArray[np.uint8]], num_tokens: int) -> Answer:
    """Continues a prompt with placeholders for the tiles of images or videos, uint8 [tiles, side, side, 3] each."""
    media: dict[str, Any] = {}
    if tiles:
        values = torch.from_numpy(np.concatenate(list(tiles))).float() / 255
        media["pixel_values"] = ((values - torch.tensor(MEAN)) / torch.tensor(STD)).permute(0, 3, 1, 2)
    return generate(load_oracle(path), prompt, num_tokens, **media)


def tiles_of(path: Path, image: PIL.Image.Image) -> npt.NDArray[np.uint8]:
    """Returns the tiles and the overview that the reference processor makes, uint8 [tiles, side, side, 3]."""
    values = _image_processor(path)([image], crop_to_patches=True, do_normalize=False, do_rescale=False)["pixel_values"]
    return np.stack([np.asarray(value) for value in values]).transpose(0, 2, 3, 1).astype(np.uint8)


def frames_of(frames: Sequence[PIL.Image.Image], side: int) -> npt.NDArray[np.uint8]:
    """Returns what the reference makes of a video's frames. Its video processor requires torchvision."""
    return np.stack([np.asarray(frame.resize((side, side), PIL.Image.Resampling.BICUBIC)) for frame in frames])


def prompt_ids(
    path: Path, messages: list[dict[str, Any]], images: Sequence[PIL.Image.Image], num_frames: Sequence[int] = ()
) -> list[int]:
    """Returns the token ids of a conversation with images, and videos of `num_frames` frames each."""
    processor = _processor(path)
    text = str(processor.apply_chat_template(messages, add_generation_prompt=True))
    if images and not num_frames:
        (token_ids,) = processor(text=[text], images=list(images))["input_ids"]
        return token_ids
    num_tiles, frames = [len(tiles_of(path, image)) for image in images], [np.empty((n, 1)) for n in num_frames]
    texts = {
        "<IMG_CONTEXT>": iter(
            [processor.replace_image_token({"num_patches": num_tiles}, i) for i in range(len(images))]
        ),
        "<video>": iter(
            [processor.replace_video_token({"pixel_values_videos": frames}, i) for i in range(len(frames))]
        ),
    }
    return processor.tokenizer(re.sub("|".join(texts), lambda found: next(texts[found[0]]), text))["input_ids"]


@cache
def _image_processor(path: Path) -> Any:
    return GotOcr2ImageProcessorPil.from_pretrained(path)


@cache
def _processor(path: Path) -> Any:
    document = json.loads((path / "tokenizer_config.json").read_text())
    tokenizer = TokenizersBackend(
        tokenizer_object=Tokenizer.from_file(str(path / "tokenizer.json")),
        eos_token=document["eos_token"],
        extra_special_tokens={
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
    )
    return _WithoutVideos(
        _image_processor(path), tokenizer, image_seq_length=NUM_TILE_TOKENS, chat_template=document["chat_template"]
    )
