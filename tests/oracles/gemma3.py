"""The oracle of tests: transformers' Gemma 3 with images. The engine never imports this."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Gemma3ForConditionalGeneration, Gemma3ImageProcessorPil

from tests.checkpoints.gemma3 import TOKEN_IDS
from tests.oracles.answers import Answer, generate


@cache
def load_oracle(path: Path) -> Any:
    """Returns the reference model in float32."""
    return Gemma3ForConditionalGeneration.from_pretrained(path, dtype=torch.float32).eval()


@cache
def image_processor(path: Path) -> Any:
    """Returns the reference image processor."""
    return Gemma3ImageProcessorPil.from_pretrained(path)


@torch.inference_mode()
def greedy_answer(path: Path, prompt: Sequence[int], images: Sequence[np.ndarray], num_tokens: int) -> Answer:
    """Continues a prompt with images, uint8 [height, width, 3]."""
    token_ids = torch.tensor([list(prompt)])
    media = {"pixel_values": image_processor(path)(list(images), return_tensors="pt").pixel_values} if images else {}
    return generate(
        load_oracle(path),
        prompt,
        num_tokens,
        token_type_ids=(token_ids == TOKEN_IDS["<image_soft_token>"]).long(),
        **media,
    )
