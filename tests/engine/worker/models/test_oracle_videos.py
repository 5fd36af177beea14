"""Logits and greedy answers about videos match transformers for any division into steps and cached prefixes.

These videos have no more temporal patches than their height or width in tokens: after longer ones, transformers places
text at other positions (see `glimpse.engine.worker.models.qwen_vl.layout_prompt`).
"""

from pathlib import Path

import pytest
import torch

from tests.engine.harness import BLOCK_SIZE, Harness, Prompt, ScriptedSequence, make_prompt
from tests.oracles.qwen_vl import greedy_answer

NUM_TOKENS = 12

ONE_VIDEO = make_prompt(11, 5, (6, 84, 56), 9)
ODD_VIDEO = make_prompt(12, 3, (3, 56, 84), 4)
VIDEO_FIRST = make_prompt(13, (4, 56, 56), 1)
VIDEOS_AND_IMAGES = make_prompt(14, 3, (4, 56, 112), 2, (84, 56), 1, (2, 28, 140), 4, (56, 56), 6)
PROMPTS = {"one": ONE_VIDEO, "odd": ODD_VIDEO, "first": VIDEO_FIRST, "among images": VIDEOS_AND_IMAGES}


def assert_agrees(sequence: ScriptedSequence, path: Path) -> None:
    prompt = sequence.prompt
    expected = greedy_answer(path, prompt.token_ids, prompt.spans, prompt.images, len(sequence.answer))
    assert sequence.answer == expected.token_ids
    assert (torch.stack(sequence.logits) - expected.logits).abs().max() <= 1e-4


@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS.keys())
def test_alone(harness: Harness, tiny_checkpoint: Path, prompt: Prompt) -> None:
    assert_agrees(harness.answer(harness.begin(prompt), NUM_TOKENS), tiny_checkpoint)


@pytest.mark.parametrize("size", [1, 5, 13])
def test_chunked_within_videos(harness: Harness, tiny_checkpoint: Path, size: int) -> None:
    num_chunks = (len(VIDEOS_AND_IMAGES.token_ids) - 1) // size
    sequence = harness.answer(harness.begin(VIDEOS_AND_IMAGES), NUM_TOKENS, chunks=[size] * num_chunks)
    assert_agrees(sequence, tiny_checkpoint)


def test_batched_with_others(harness: Harness, tiny_checkpoint: Path) -> None:
    sequences = [harness.begin(prompt) for prompt in PROMPTS.values()]
    harness.step(*((sequence, len(sequence.prompt.token_ids)) for sequence in sequences))
    for _ in range(NUM_TOKENS - 1):
        harness.step(*((sequence, 1) for sequence in sequences))
    for sequence in sequences:
        assert_agrees(sequence, tiny_checkpoint)


@pytest.mark.parametrize("num_blocks", [1, 2])
def test_cached_prefix_that_ends_within_a_video(harness: Harness, tiny_checkpoint: Path, num_blocks: int) -> None:
    first = harness.answer(harness.begin(ONE_VIDEO), 2)
    second = harness.begin(ONE_VIDEO, cached=first, num_cached=num_blocks * BLOCK_SIZE)
    assert_agrees(harness.answer(second, NUM_TOKENS), tiny_checkpoint)


def test_answers_depend_on_the_order_of_frames(harness: Harness) -> None:
    backwards = Prompt(
        token_ids=ONE_VIDEO.token_ids,
        spans=make_prompt(15, 5, (6, 84, 56), 9).spans,  # with another key
        images=(ONE_VIDEO.images[0][::-1].copy(),),
    )
    forwards, reverse = (harness.answer(harness.begin(prompt), 1).logits[0] for prompt in (ONE_VIDEO, backwards))
    assert (forwards - reverse).abs().max() > 1e-2
