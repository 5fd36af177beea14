"""Prompts of Qwen3-VL: each frame of a video follows the text of its time stamp."""

import numpy as np

from glimpse.media.kind import MediaKind
from tests.engine.harness import PLACEHOLDER_IDS, PlacedMedium, Prompt, prompt_with

VISION_START, VISION_END = 274, 275
_SIDE = 32  # of a token in pixels


def make_qwen3_prompt(seed: int, *parts: int | tuple[int, int] | tuple[int, int, int]) -> Prompt:
    """Does what `tests.engine.harness.make_prompt` does, with 16-pixel patches and random times between frames."""
    return prompt_with(seed, parts, _place)


def _place(random: np.random.Generator, part: tuple[int, ...]) -> PlacedMedium:
    image = random.integers(0, 256, (*part, 3), dtype=np.uint8)
    *frames, height, width = part
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
    grid = (num_patches, height // 16, width // 16)
    return PlacedMedium(token_ids=token_ids, kind=kind, grid=grid, content=image, runs=tuple(runs))
