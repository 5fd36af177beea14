"""The oracle of tests: transformers' Mistral 3 and LightOnOCR. The engine never imports this."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PixtralImageProcessorPil

from tests.checkpoints.mistral3 import PATCH
from tests.oracles.answers import Answer, generate, load_oracle


@cache
def image_processor(path: Path) -> Any:
    """Returns the reference image processor, with the size that the processors around it set."""
    side = PATCH * json.loads((path / "processor_config.json").read_text())["spatial_merge_size"]
    return PixtralImageProcessorPil.from_pretrained(path, patch_size={"height": side, "width": side})


@torch.inference_mode()
def greedy_answer(path: Path, prompt: Sequence[int], images: Sequence[np.ndarray], num_tokens: int) -> Answer:
    """Continues a prompt with images, uint8 [height, width, 3], whose sides are whole tokens."""
    media = image_processor(path)(list(images), return_tensors="pt") if images else {}
    return generate(load_oracle(path), prompt, num_tokens, **media)
