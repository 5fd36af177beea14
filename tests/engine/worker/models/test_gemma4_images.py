"""Gemma 4 with images and videos: logits and greedy answers match transformers, of small models and of large ones."""

from pathlib import Path

import numpy as np
import pytest
import torch

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.worker.native.library import Level
from glimpse.media.kind import MediaKind
from tests.checkpoints.gemma4 import PATCH, POOL, TOKEN_IDS, make_gemma4_checkpoint, make_large_gemma4_checkpoint
from tests.engine.harness import Harness, PlacedMedium, Prompt, prompt_with
from tests.engine.levels import at_outer_levels, needs_kernels
from tests.engine.worker.models.steps import NativeSteps, agreement
from tests.oracles.gemma4 import greedy_answer

CHECKPOINT = make_gemma4_checkpoint
NUM_TOKENS = 8


def place(random: np.random.Generator, size: tuple[int, ...]) -> PlacedMedium:
    """Places an image of this many rows and columns of tokens, or a video with a number of frames before them, where
    text follows each frame."""
    *frames, rows, columns = size
    count = rows * columns
    kind = MediaKind.VIDEO if frames else MediaKind.IMAGE
    token_ids: list[int] = []
    runs: list[tuple[int, int]] = []
    for _ in range(sum(frames) or 1):
        runs.append((len(token_ids) + 1, count))
        token_ids += [TOKEN_IDS["<|image>"], *[TOKEN_IDS[f"<|{kind}|>"]] * count, TOKEN_IDS["<image|>"]]
        token_ids += random.integers(5, 256, 2).tolist() if frames else []
    return PlacedMedium(
        token_ids=token_ids,
        kind=kind,
        grid=(sum(frames) or 1, rows * POOL, columns * POOL),
        content=random.integers(0, 256, (*frames, rows * POOL * PATCH, columns * POOL * PATCH, 3), dtype=np.uint8),
        runs=tuple(runs),
    )


def prompt_of(seed: int, *parts: int | tuple[int, ...]) -> Prompt:
    """Returns a prompt of random text and images; a number is one of text tokens."""
    return prompt_with(seed, parts, place, text_ids=(5, 256))


VIDEOS = prompt_of(8, 3, (3, 2, 2), 2, (3, 2), 1, (2, 1, 3), 5)
PROMPTS = {
    "text": prompt_of(1, 23),
    "one": prompt_of(2, 5, (2, 4), 9),
    "two": prompt_of(3, 3, (3, 2), 2, (1, 5), 6),
    "videos": VIDEOS,
    "first": prompt_of(4, (3, 3), 1),
    "adjacent": prompt_of(5, 2, (2, 2), (3, 1), (2, 2), 3),
    "beyond the window": prompt_of(6, 30, (3, 8), 40, (2, 3), 25),
    "between": prompt_of(7, 3, (3, 3), 4, (3, 3), 6),
}


assert_agrees = agreement(greedy_answer, "images")


class TestSteps(NativeSteps):
    agrees = staticmethod(assert_agrees)
    divided, cached = "videos", ("between", "videos")
    blocks = (1, 2)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_large_gemma4_checkpoint(tmp_path_factory.mktemp("large"))


@pytest.mark.parametrize("name", PROMPTS)
def test_tokens_of_an_image_attend_to_each_other_in_sliding_layers_of_large_models(large: Path, name: str) -> None:
    harness = Harness(large)
    assert_agrees(harness.answer(harness.begin(PROMPTS[name]), NUM_TOKENS), large)


def test_large_models_in_chunks_that_have_whole_images_and_frames(large: Path) -> None:
    harness = Harness(large)
    # Two frames of the first video with text, its last one and the image, a frame of the second.
    assert_agrees(harness.answer(harness.begin(VIDEOS), NUM_TOKENS, chunks=[3, 16, 8, 2, 9, 7]), large)


@needs_kernels
@at_outer_levels
def test_native_kernels_of_large_models_agree(large: Path, level: Level) -> None:
    plain, native = Harness(large), Harness(large, torch.float32, level=level, block_size=32)
    prompt = PROMPTS["beyond the window"]
    expected, answer = (each.answer(each.begin(prompt), 3) for each in (plain, native))
    assert answer.answer == expected.answer
    assert (torch.stack(answer.logits) - torch.stack(expected.logits)).abs().max() <= 1e-3


def test_reads_which_models_compute_an_image_in_one_step(checkpoint: Path, large: Path) -> None:
    texts = [load_model_config(path).text for path in (checkpoint, large)]
    assert [text.bidirectional_run for text in texts] == [0, 1120]
    assert not texts[1].bidirectional_full
