"""Logits and greedy answers match transformers for any division into steps, batches and cached prefixes."""

from pathlib import Path

import pytest
import torch

from tests.checkpoints.qwen2_vl import make_checkpoint
from tests.engine.harness import Harness, Prompt, make_prompt
from tests.engine.levels import assert_stays_near_float32
from tests.engine.worker.models.steps import Steps, agreement
from tests.oracles.qwen_vl import greedy_answer

NUM_TOKENS = 12

TEXT = make_prompt(1, 23)
ONE_IMAGE = make_prompt(2, 5, (112, 84), 9)
# Text is between and after images, because the reference merges adjacent images and fails after a final one.
SEVERAL_IMAGES = make_prompt(3, 3, (28, 28), 1, (56, 196), 1, (140, 28), 4, (84, 112), 6)
IMAGE_FIRST = make_prompt(4, (84, 84), 1)
PROMPTS = {"text": TEXT, "one image": ONE_IMAGE, "several images": SEVERAL_IMAGES, "image first": IMAGE_FIRST}


assert_agrees = agreement(greedy_answer, "spans", "images")


class TestSteps(Steps):
    agrees = staticmethod(assert_agrees)
    divided, cached = "several images", ("several images",)
    sizes = (1, 2, 5, 8, 13)
    blocks = (1, 2, 3, 4)
    num_tokens = NUM_TOKENS


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


def test_prefill_batched_with_decodes(harness: Harness, checkpoint: Path):
    early, late = harness.begin(TEXT), harness.begin(SEVERAL_IMAGES)
    harness.answer(early, 2)
    num_chunks = 0
    while len(late.answer) < 3:
        left = len(late.token_ids) - late.num_computed
        harness.step((late, min(7, left)), (early, 1))
        num_chunks += 1
    assert num_chunks > 4
    assert_agrees(early, checkpoint)
    assert_agrees(late, checkpoint)


def test_recomputed_after_preemption(harness: Harness, checkpoint: Path):
    sequence = harness.answer(harness.begin(ONE_IMAGE), 6)
    sequence.num_computed = 0
    num_tokens = len(sequence.token_ids)
    harness.step((sequence, num_tokens - 3))
    harness.step((sequence, 3))
    harness.step((sequence, 1))
    assert_agrees(sequence, checkpoint)


def test_bfloat16_stays_near_float32(checkpoint: Path):
    assert_stays_near_float32(checkpoint, PROMPTS.values(), torch.bfloat16, tolerance=0.1, levels=[None])
