"""Gemma 3 with images: logits and greedy answers match transformers; an image's tokens are computed together."""

from pathlib import Path

import numpy as np
import pytest

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.media.kind import MediaKind
from tests.checkpoints.files import write_json
from tests.checkpoints.gemma3 import NUM_IMAGE_TOKENS, SIDE, TOKEN_IDS, make_gemma3_checkpoint
from tests.checkpoints.llava import Names
from tests.checkpoints.refusals import assert_refused
from tests.engine.harness import Harness, PlacedMedium, Prompt, prompt_with
from tests.engine.worker.models.steps import NativeSteps, agreement
from tests.oracles.gemma3 import greedy_answer

CHECKPOINT = make_gemma3_checkpoint
NUM_TOKENS = 8
IMAGE = -1


def place(random: np.random.Generator, _: int) -> PlacedMedium:
    run = [TOKEN_IDS["<image_soft_token>"]] * NUM_IMAGE_TOKENS
    return PlacedMedium(
        token_ids=[TOKEN_IDS["<start_of_image>"], *run, TOKEN_IDS["<end_of_image>"]],
        kind=MediaKind.IMAGE,
        grid=(1, 1),
        content=random.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8),
        runs=((1, NUM_IMAGE_TOKENS),),
    )


def prompt_of(seed: int, *parts: int) -> Prompt:
    """Returns a prompt of random text and images; a number other than IMAGE is a number of text tokens."""
    return prompt_with(seed, parts, place, text_ids=(5, 256))


TWO_IMAGES = prompt_of(3, 3, IMAGE, 2, IMAGE, 6)
PROMPTS = {
    "text": prompt_of(1, 23),
    "one": prompt_of(2, 5, IMAGE, 9),
    "two": TWO_IMAGES,
    "first": prompt_of(4, IMAGE, 1),
    "adjacent": prompt_of(5, 2, IMAGE, IMAGE, IMAGE, 3),
    "beyond the window": prompt_of(6, 30, IMAGE, 40, IMAGE, 25),
    "between": prompt_of(7, 3, IMAGE, 4, IMAGE, 6),
}


assert_agrees = agreement(greedy_answer, "images")


class TestSteps(NativeSteps):
    agrees = staticmethod(assert_agrees)
    divided, cached = "two", ("between",)
    sizes = ((3, 12, 2), (4, 9, 4), (13, 4, 9))
    blocks = (2,)


@pytest.mark.parametrize("names", ["saved", "nested"])
def test_stored_layouts(tmp_path: Path, names: Names) -> None:
    path = make_gemma3_checkpoint(tmp_path, names=names)
    harness = Harness(path)
    assert_agrees(harness.answer(harness.begin(TWO_IMAGES), NUM_TOKENS), path)


def test_reads_published_configurations_that_leave_out_defaults(tmp_path: Path) -> None:
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "boi_token_index": 255999,
        "eoi_token_index": 256000,
        "eos_token_id": [1, 106],
        "image_token_index": 262144,
        "mm_tokens_per_image": 256,
        "text_config": {
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "model_type": "gemma3_text",
            "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
        "torch_dtype": "bfloat16",
        "vision_config": {
            "hidden_size": 1152,
            "image_size": 896,
            "intermediate_size": 4304,
            "model_type": "siglip_vision_model",
            "num_attention_heads": 16,
            "num_hidden_layers": 27,
            "patch_size": 14,
            "vision_use_head": False,
        },
    }
    write_json(tmp_path / "config.json", config)
    model = load_model_config(tmp_path)
    text = model.text
    assert (text.vocab_size, text.num_heads, text.num_kv_heads, text.head_dim) == (262_208, 8, 4, 256)
    assert text.bidirectional_run == 256
    assert model.placeholder_ids == {"image": 262144}
    assert_refused(
        tmp_path, config | {"mm_tokens_per_image": 200}, "'mm_tokens_per_image': expected the square of a divisor"
    )
