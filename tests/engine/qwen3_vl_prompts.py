"""Prompts of Qwen3-VL: each frame of a video follows the text of its time stamp."""

import hashlib

import numpy as np

from glimpse.engine.protocol.media import MediaSpan
from glimpse.media.kind import MediaKind
from tests.engine.harness import PLACEHOLDER_IDS, Prompt

VISION_START, VISION_END = 274, 275
_SIDE = 32  # of a token in pixels


def make_qwen3_prompt(seed: int, *parts: int | tuple[int, int] | tuple[int, int, int]) -> Prompt:
    """Does what `tests.engine.harness.make_prompt` does, with 16-pixel patches and random times between frames."""
    random = np.random.default_rng(seed)
    token_ids: list[int] = []
    spans: list[MediaSpan] = []
    images: list[np.ndarray] = []
    for part in parts:
        if isinstance(part, int):
            token_ids += random.integers(0, 256, part).tolist()
            continue
        image = random.integers(0, 256, (*part, 3), dtype=np.uint8)
        own_ids, span = _medium(random, image, start=len(token_ids))
        token_ids += own_ids
        spans.append(span)
        images.append(image)
    return Prompt(token_ids=tuple(token_ids), spans=tuple(spans), images=tuple(images))


def _medium(random: np.random.Generator, image: np.ndarray, *, start: int) -> tuple[list[int], MediaSpan]:
    *frames, height, width, _ = image.shape
    kind = MediaKind.VIDEO if frames else MediaKind.IMAGE
    num_patches = -(-sum(frames) // 2) or 1
    length = height * width // _SIDE**2
    token_ids: list[int] = []
    runs: list[tuple[int, int]] = []
    for _ in range(num_patches):
        stamp = random.integers(0, 256, random.integers(3, 6)).tolist() if frames else []
        token_ids += [*stamp, VISION_START]
        runs.append((len(token_ids), length))
        token_ids += [PLACEHOLDER_IDS[kind]] * length + [VISION_END]
    span = MediaSpan(
        kind=kind,
        start=start,
        num_tokens=len(token_ids),
        runs=tuple(runs),
        key=hashlib.sha256(image.tobytes()).digest(),
        grid=(num_patches, height // 16, width // 16),
    )
    return token_ids, span
