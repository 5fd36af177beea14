"""Prompts with images for the tiny Phi-3.5-vision checkpoint."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from glimpse.media.kind import MediaKind
from tests.checkpoints.phi3v import PLACEHOLDER_ID, SIDE
from tests.engine.harness import PlacedMedium, Prompt, prompt_with
from tests.engine.prepared_media import image_of
from tests.oracles.phi3v import num_tokens


def prompt_of(checkpoint: Path, seed: int, *parts: int | tuple[int, int]) -> Prompt:
    """Returns a prompt of images and random text: an integer is a number of text tokens, a pair an image's size."""

    def place(_: np.random.Generator, part: tuple[int, int]) -> PlacedMedium:
        image = image_of(checkpoint, *part)
        tiles = (image.pixels, (image.grid[0], image.grid[1]))
        token_ids = [PLACEHOLDER_ID] * num_tokens(tiles, SIDE)
        medium = PlacedMedium(token_ids=token_ids, kind=MediaKind.IMAGE, grid=image.grid, content=image.pixels)
        return replace(medium, key=image.key, source=tiles)

    return prompt_with(seed, parts, place, text_ids=(3, 360))
