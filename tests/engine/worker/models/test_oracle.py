"""Logits and greedy answers match transformers for any division into steps, batches and cached prefixes."""

from pathlib import Path

import pytest
import torch

from tests.checkpoints.qwen2_vl import make_checkpoint
from tests.engine.harness import BLOCK_SIZE, Harness, Prompt, ScriptedSequence, make_prompt
from tests.oracles.qwen_vl import greedy_answer

NUM_TOKENS = 12

TEXT = make_prompt(1, 23)
ONE_IMAGE = make_prompt(2, 5, (112, 84), 9)
# Text is between and after images, because the reference merges adjacent images and fails after a final one.
SEVERAL_IMAGES = make_prompt(3, 3, (28, 28), 1, (56, 196), 1, (140, 28), 4, (84, 112), 6)
IMAGE_FIRST = make_prompt(4, (84, 84), 1)
PROMPTS = {"text": TEXT, "one image": ONE_IMAGE, "several images": SEVERAL_IMAGES, "image first": IMAGE_FIRST}


def assert_agrees(sequence: ScriptedSequence, path: Path) -> None:
    expected = greedy_answer(
        path, sequence.prompt.token_ids, sequence.prompt.spans, sequence.prompt.images, len(sequence.answer)
    )
    assert sequence.answer == expected.token_ids
    assert (torch.stack(sequence.logits) - expected.logits).abs().max() <= 1e-4


@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS.keys())
def test_alone(harness: Harness, tiny_checkpoint: Path, prompt: Prompt):
    assert_agrees(harness.answer(harness.begin(prompt), NUM_TOKENS), tiny_checkpoint)


def test_answers_depend_on_the_image(harness: Harness):
    text = make_prompt(5, 30).token_ids
    answers: set[tuple[int, ...]] = set()
    for seed in range(4):
        image_prompt = make_prompt(seed, (56, 56))
        prompt = Prompt(token_ids=image_prompt.token_ids + text, spans=image_prompt.spans, images=image_prompt.images)
        answers.add(tuple(harness.answer(harness.begin(prompt), 4).answer))
    assert len(answers) == 4


@pytest.mark.parametrize("nested_layout", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_stored_layouts(tmp_path: Path, nested_layout: bool, tied: bool):
    path = make_checkpoint(tmp_path, seed=7, hidden=128, layers=3, tied=tied, nested_layout=nested_layout)
    harness = Harness(path)
    assert_agrees(harness.answer(harness.begin(ONE_IMAGE), NUM_TOKENS), path)


def test_batched_with_others(harness: Harness, tiny_checkpoint: Path):
    sequences = [harness.begin(prompt) for prompt in PROMPTS.values()]
    harness.step(*((sequence, len(sequence.prompt.token_ids)) for sequence in sequences))
    for _ in range(NUM_TOKENS - 1):
        harness.step(*((sequence, 1) for sequence in sequences))
    for sequence in sequences:
        assert_agrees(sequence, tiny_checkpoint)


def test_prefill_batched_with_decodes(harness: Harness, tiny_checkpoint: Path):
    early, late = harness.begin(TEXT), harness.begin(SEVERAL_IMAGES)
    harness.answer(early, 2)
    num_chunks = 0
    while len(late.answer) < 3:
        left = len(late.token_ids) - late.num_computed
        harness.step((late, min(7, left)), (early, 1))
        num_chunks += 1
    assert num_chunks > 4
    assert_agrees(early, tiny_checkpoint)
    assert_agrees(late, tiny_checkpoint)


@pytest.mark.parametrize("size", [1, 2, 5, 8, 13])
def test_chunked_within_spans(harness: Harness, tiny_checkpoint: Path, size: int):
    num_chunks = (len(SEVERAL_IMAGES.token_ids) - 1) // size
    sequence = harness.answer(harness.begin(SEVERAL_IMAGES), NUM_TOKENS, chunks=[size] * num_chunks)
    assert_agrees(sequence, tiny_checkpoint)


@pytest.mark.parametrize("num_blocks", [1, 2, 3, 4])
def test_cached_prefix(harness: Harness, tiny_checkpoint: Path, num_blocks: int):
    first = harness.answer(harness.begin(SEVERAL_IMAGES), 2)
    second = harness.begin(SEVERAL_IMAGES, cached=first, num_cached=num_blocks * BLOCK_SIZE)
    assert_agrees(harness.answer(second, NUM_TOKENS), tiny_checkpoint)


def test_recomputed_after_preemption(harness: Harness, tiny_checkpoint: Path):
    sequence = harness.answer(harness.begin(ONE_IMAGE), 6)
    sequence.num_computed = 0
    num_tokens = len(sequence.token_ids)
    harness.step((sequence, num_tokens - 3))
    harness.step((sequence, 3))
    harness.step((sequence, 1))
    assert_agrees(sequence, tiny_checkpoint)


def test_bfloat16_stays_near_float32(tiny_checkpoint: Path):
    exact, rounded = (Harness(tiny_checkpoint, dtype) for dtype in (torch.float32, torch.bfloat16))
    for prompt in PROMPTS.values():
        expected = exact.answer(exact.begin(prompt), 1).logits[0]
        difference = rounded.answer(rounded.begin(prompt), 1).logits[0] - expected
        assert difference.square().mean().sqrt() < 0.1 * expected.std()
