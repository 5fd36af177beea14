"""Prompts of SmolVLM and Idefics3 without a tokenizer."""

import numpy as np

from glimpse.engine.protocol.media import MediaSpan
from glimpse.media.kind import MediaKind
from tests.checkpoints.idefics3 import TOKEN_IDS, Family, tile_side
from tests.engine.harness import Prompt

NUM_TILE_TOKENS = 4


def tiled_prompt(seed: int, family: Family, *parts: int | tuple[int]) -> Prompt:
    """Returns a prompt of images and random text: an integer is a number of text tokens, (n,) an image of n tiles.

    Each tile is a run of placeholder tokens with a literal token before it.
    """
    random = np.random.default_rng(seed)
    token_ids: list[int] = []
    spans: list[MediaSpan] = []
    images: list[np.ndarray] = []
    side = tile_side(family)
    for part in parts:
        if isinstance(part, int):
            token_ids += random.integers(0, 256, part).tolist()
            continue
        (num_tiles,) = part
        image = random.integers(0, 256, (num_tiles, side, side, 3), dtype=np.uint8)
        runs = tuple((tile * (NUM_TILE_TOKENS + 1) + 1, NUM_TILE_TOKENS) for tile in range(num_tiles))
        tile_ids = [TOKEN_IDS["<fake_token_around_image>"], *[TOKEN_IDS["<image>"]] * NUM_TILE_TOKENS]
        spans.append(
            MediaSpan(
                kind=MediaKind.IMAGE,
                start=len(token_ids),
                num_tokens=num_tiles * len(tile_ids),
                runs=runs,
                key=random.bytes(32),
                grid=(num_tiles,),
            )
        )
        images.append(image)
        token_ids += tile_ids * num_tiles
    return Prompt(token_ids=tuple(token_ids), spans=tuple(spans), images=tuple(images))
