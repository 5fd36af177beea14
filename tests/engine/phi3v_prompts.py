"""Prompts with images for the tiny Phi-3.5-vision checkpoint."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.text.media_inputs import read_media
from glimpse.media.kind import MediaKind
from glimpse.media.processing.image import Image, prepare_image
from tests.checkpoints.phi3v import PLACEHOLDER_ID, SIDE
from tests.engine.harness import PlacedMedium, Prompt, prompt_with
from tests.media.images import scene
from tests.oracles.phi3v import num_tokens


def image_of(checkpoint: Path, width: int, height: int) -> Image:
    processing = read_media(checkpoint, load_model_config(checkpoint)).images
    assert processing is not None
    return prepare_image(scene(width, height), processing)


def prompt_of(checkpoint: Path, seed: int, *parts: int | tuple[int, int]) -> Prompt:
    """Returns a prompt of images and random text: an integer is a number of text tokens, a pair an image's size."""

    def place(_: np.random.Generator, part: tuple[int, int]) -> PlacedMedium:
        image = image_of(checkpoint, *part)
        tiles = (image.pixels, (image.grid[0], image.grid[1]))
        token_ids = [PLACEHOLDER_ID] * num_tokens(tiles, SIDE)
        medium = PlacedMedium(token_ids=token_ids, kind=MediaKind.IMAGE, grid=image.grid, content=image.pixels)
        return replace(medium, key=image.key, source=tiles)

    return prompt_with(seed, parts, place, text_ids=(3, 360))
