"""Prompts of SmolVLM and Idefics3 without a tokenizer."""

import numpy as np

from glimpse.media.kind import MediaKind
from tests.checkpoints.idefics3 import TOKEN_IDS, Family, tile_side
from tests.engine.harness import PlacedMedium, Prompt, prompt_with

NUM_TILE_TOKENS = 4


def tiled_prompt(seed: int, family: Family, *parts: int | tuple[int]) -> Prompt:
    """Returns a prompt of images and random text: an integer is a number of text tokens, (n,) an image of n tiles.

    Each tile is a run of placeholder tokens with a literal token before it.
    """

    def place(random: np.random.Generator, part: tuple[int]) -> PlacedMedium:
        (num_tiles,), side = part, tile_side(family)
        tile_ids = [TOKEN_IDS["<fake_token_around_image>"], *[TOKEN_IDS["<image>"]] * NUM_TILE_TOKENS]
        return PlacedMedium(
            token_ids=tile_ids * num_tiles,
            kind=MediaKind.IMAGE,
            grid=part,
            content=random.integers(0, 256, (num_tiles, side, side, 3), dtype=np.uint8),
            runs=tuple((tile * len(tile_ids) + 1, NUM_TILE_TOKENS) for tile in range(num_tiles)),
        )

    return prompt_with(seed, parts, place)
