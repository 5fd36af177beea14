"""Prompts with images for tiny LLaVA-1.5 checkpoints."""

import numpy as np

from glimpse.media.kind import MediaKind
from tests.checkpoints.llava import IMAGE_TOKEN_ID, SIDE
from tests.engine.harness import PlacedMedium, Prompt, prompt_with

IMAGE = -1
"""Stands for an image in `prompt_of`."""


def prompt_of(seed: int, *parts: int, image_tokens: int = 16) -> Prompt:
    """Returns a prompt of random text and random images; a number other than IMAGE is a number of text tokens."""

    def place(random: np.random.Generator, _: int) -> PlacedMedium:
        return PlacedMedium(
            token_ids=[IMAGE_TOKEN_ID] * image_tokens,
            kind=MediaKind.IMAGE,
            grid=(1, SIDE, SIDE),
            content=random.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8),
        )

    return prompt_with(seed, parts, place, text_ids=(3, 256))
