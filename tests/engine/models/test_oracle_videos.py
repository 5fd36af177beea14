"""Logits and greedy answers about clips are the reference's, however their tokens are split over steps and caches.

These clips are no longer in time than they are high or wide, in tokens: text after others stands elsewhere in the
reference (see `glimpse.engine.models.qwen2_vl.layout_prompt`).
"""

from pathlib import Path

import pytest
import torch

from tests.engine.harness import BLOCK_SIZE, Driven, Prompt, Rig, make_prompt
from tests.oracle import greedy_answer

NUM_TOKENS = 12

ONE_VIDEO = make_prompt(11, 5, (6, 84, 56), 9)
ODD_VIDEO = make_prompt(12, 3, (3, 56, 84), 4)
VIDEO_FIRST = make_prompt(13, (4, 56, 56), 1)
VIDEOS_AND_IMAGES = make_prompt(14, 3, (4, 56, 112), 2, (84, 56), 1, (2, 28, 140), 4, (56, 56), 6)
PROMPTS = {"one": ONE_VIDEO, "odd": ODD_VIDEO, "first": VIDEO_FIRST, "among pictures": VIDEOS_AND_IMAGES}


@pytest.fixture(scope="module")
def rig(tiny_checkpoint: Path) -> Rig:
    return Rig(tiny_checkpoint)


def assert_agrees(driven: Driven, path: Path) -> None:
    prompt = driven.prompt
    expected = greedy_answer(path, prompt.token_ids, prompt.spans, prompt.images, len(driven.answer))
    assert driven.answer == expected.token_ids
    assert (torch.stack(driven.logits) - expected.logits).abs().max() <= 1e-4


@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS.keys())
def test_alone(rig: Rig, tiny_checkpoint: Path, prompt: Prompt) -> None:
    assert_agrees(rig.answer(rig.begin(prompt), NUM_TOKENS), tiny_checkpoint)


@pytest.mark.parametrize("size", [1, 5, 13])
def test_chunked_within_videos(rig: Rig, tiny_checkpoint: Path, size: int) -> None:
    num_chunks = (len(VIDEOS_AND_IMAGES.token_ids) - 1) // size
    driven = rig.answer(rig.begin(VIDEOS_AND_IMAGES), NUM_TOKENS, chunks=[size] * num_chunks)
    assert_agrees(driven, tiny_checkpoint)


def test_batched_with_others(rig: Rig, tiny_checkpoint: Path) -> None:
    sequences = [rig.begin(prompt) for prompt in PROMPTS.values()]
    rig.step(*((driven, len(driven.prompt.token_ids)) for driven in sequences))
    for _ in range(NUM_TOKENS - 1):
        rig.step(*((driven, 1) for driven in sequences))
    for driven in sequences:
        assert_agrees(driven, tiny_checkpoint)


@pytest.mark.parametrize("num_blocks", [1, 2])
def test_cached_prefix_that_ends_within_a_video(rig: Rig, tiny_checkpoint: Path, num_blocks: int) -> None:
    first = rig.answer(rig.begin(ONE_VIDEO), 2)
    second = rig.begin(ONE_VIDEO, cached=first, num_cached=num_blocks * BLOCK_SIZE)
    assert_agrees(rig.answer(second, NUM_TOKENS), tiny_checkpoint)


def test_the_order_of_frames_counts(rig: Rig) -> None:
    backwards = Prompt(
        token_ids=ONE_VIDEO.token_ids,
        spans=make_prompt(15, 5, (6, 84, 56), 9).spans,  # of another key
        images=(ONE_VIDEO.images[0][::-1].copy(),),
    )
    forwards, reverse = (rig.answer(rig.begin(prompt), 1).logits[0] for prompt in (ONE_VIDEO, backwards))
    assert (forwards - reverse).abs().max() > 1e-2
