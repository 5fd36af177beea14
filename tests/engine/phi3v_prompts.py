"""Prompts with images for the tiny Phi-3.5-vision checkpoint."""

from pathlib import Path

import numpy as np

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.text.media_inputs import read_media
from glimpse.engine.protocol.media import MediaSpan
from glimpse.media.kind import MediaKind
from glimpse.media.processing.image import Image, prepare_image
from tests.checkpoints.phi3v import PLACEHOLDER_ID, SIDE
from tests.engine.harness import Prompt
from tests.media.images import scene
from tests.oracles.phi3v import num_tokens


def image_of(checkpoint: Path, width: int, height: int) -> Image:
    processing = read_media(checkpoint, load_model_config(checkpoint)).images
    assert processing is not None
    return prepare_image(scene(width, height), processing)


def prompt_of(checkpoint: Path, seed: int, *parts: int | tuple[int, int]) -> Prompt:
    """Returns a prompt of images and random text: an integer is a number of text tokens, a pair an image's size."""
    random = np.random.default_rng(seed)
    token_ids: list[int] = []
    spans: list[MediaSpan] = []
    media: list[np.ndarray] = []
    for part in parts:
        if isinstance(part, int):
            token_ids += random.integers(3, 360, part).tolist()
            continue
        image = image_of(checkpoint, *part)
        run = num_tokens((image.pixels, (image.grid[0], image.grid[1])), SIDE)
        spans.append(
            MediaSpan(
                kind=MediaKind.IMAGE,
                start=len(token_ids),
                num_tokens=run,
                runs=((0, run),),
                key=image.key,
                grid=image.grid,
            )
        )
        media.append(image.pixels)
        token_ids += [PLACEHOLDER_ID] * run
    return Prompt(token_ids=tuple(token_ids), spans=tuple(spans), images=tuple(media))
