"""Prompts with images for tiny LLaVA-1.5 checkpoints."""

import hashlib

import numpy as np

from glimpse.engine.protocol.media import MediaSpan
from glimpse.media.kind import MediaKind
from tests.checkpoints.llava import IMAGE_TOKEN_ID, SIDE
from tests.engine.harness import Prompt

IMAGE = -1
"""Stands for an image in `prompt_of`."""


def prompt_of(seed: int, *parts: int, image_tokens: int = 16) -> Prompt:
    """Returns a prompt of random text and random images; a number other than IMAGE is a number of text tokens."""
    random = np.random.default_rng(seed)
    token_ids: list[int] = []
    spans: list[MediaSpan] = []
    images: list[np.ndarray] = []
    for part in parts:
        if part != IMAGE:
            token_ids += random.integers(3, 256, part).tolist()
            continue
        image = random.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
        key = hashlib.sha256(image.tobytes()).digest()
        span = MediaSpan(
            kind=MediaKind.IMAGE, start=len(token_ids), num_tokens=image_tokens, key=key, grid=(1, SIDE, SIDE)
        )
        spans.append(span)
        images.append(image)
        token_ids += [IMAGE_TOKEN_ID] * image_tokens
    return Prompt(token_ids=tuple(token_ids), spans=tuple(spans), images=tuple(images))
