"""The oracle of tests: transformers' SmolVLM and Idefics3. The engine never imports this."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL.Image
import torch
from tokenizers import Tokenizer
from transformers import Idefics3ImageProcessorPil, Idefics3Processor, TokenizersBackend

from tests.oracles.answers import Answer, generate, load_oracle


@torch.inference_mode()
def greedy_answer(path: Path, prompt: Sequence[int], tiles: Sequence[npt.NDArray[np.uint8]], num_tokens: int) -> Answer:
    """Continues a prompt with placeholders for the tiles of images or videos, uint8 [tiles, side, side, 3] each."""
    media: dict[str, Any] = {}
    if tiles:
        # Normalized with a mean and deviation of one half, as all published checkpoints are.
        values = torch.from_numpy(np.concatenate(list(tiles))).permute(0, 3, 1, 2).float() / 127.5 - 1
        media["pixel_values"] = values[None]
    return generate(load_oracle(path), prompt, num_tokens, **media)


def tiles_of(path: Path, image: PIL.Image.Image, *, split: bool = True) -> npt.NDArray[np.uint8]:
    """Returns the tiles and the overview that the reference processor makes, uint8 [tiles, side, side, 3].

    Without splitting it makes what SmolVLM's video processor, which requires torchvision, makes of a frame.
    """
    processor: Any = Idefics3ImageProcessorPil.from_pretrained(path)
    sizes = {} if split else {"do_image_splitting": False, "size": processor.max_image_size}
    values = processor([[image]], do_normalize=False, do_rescale=False, **sizes)["pixel_values"]
    return np.asarray(values[0]).transpose(0, 2, 3, 1).astype(np.uint8)


def prompt_ids(path: Path, messages: list[dict[str, Any]], images: Sequence[PIL.Image.Image]) -> list[int]:
    """Returns the token ids of a conversation with images.

    Idefics3's processor makes them, because SmolVLM's, which expands images alike, requires further libraries.
    """
    document = json.loads((path / "tokenizer_config.json").read_text())
    tokenizer = TokenizersBackend(
        tokenizer_object=Tokenizer.from_file(str(path / "tokenizer.json")), eos_token=document["eos_token"]
    )
    config = load_oracle(path).config
    processor: Any = Idefics3Processor(
        Idefics3ImageProcessorPil.from_pretrained(path),
        tokenizer,
        image_seq_len=(config.vision_config.image_size // config.vision_config.patch_size // config.scale_factor) ** 2,
        chat_template=document["chat_template"],
    )
    text = processor.apply_chat_template(messages, add_generation_prompt=True)
    (token_ids,) = processor(text=[text], images=[list(images)] if images else None)["input_ids"]
    return token_ids
