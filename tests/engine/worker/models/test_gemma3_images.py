"""Gemma 3 with images: logits and greedy answers match transformers; an image's tokens are computed together."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.media import MediaSpan
from glimpse.media.kind import MediaKind
from tests.checkpoints.gemma3 import NUM_IMAGE_TOKENS, SIDE, TOKEN_IDS, make_gemma3_checkpoint
from tests.checkpoints.llava import Names
from tests.checkpoints.qwen2_vl import write_json
from tests.engine.harness import BLOCK_SIZE, Harness, Prompt, ScriptedSequence
from tests.engine.levels import assert_stays_near_float32, needs_kernels
from tests.oracles.gemma3 import greedy_answer

CHECKPOINT = make_gemma3_checkpoint
NUM_TOKENS = 8
IMAGE = -1


def prompt_of(seed: int, *parts: int) -> Prompt:
    """Returns a prompt of random text and images; a number other than IMAGE is a number of text tokens."""
    random = np.random.default_rng(seed)
    token_ids: list[int] = []
    spans: list[MediaSpan] = []
    images: list[np.ndarray] = []
    for part in parts:
        if part != IMAGE:
            token_ids += random.integers(5, 256, part).tolist()
            continue
        image = random.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
        span = MediaSpan(
            kind=MediaKind.IMAGE,
            start=len(token_ids),
            num_tokens=NUM_IMAGE_TOKENS + 2,
            runs=((1, NUM_IMAGE_TOKENS),),
            key=hashlib.sha256(image.tobytes()).digest(),
            grid=(1, 1),
        )
        spans.append(span)
        images.append(image)
        run = [TOKEN_IDS["<image_soft_token>"]] * NUM_IMAGE_TOKENS
        token_ids += [TOKEN_IDS["<start_of_image>"], *run, TOKEN_IDS["<end_of_image>"]]
    return Prompt(token_ids=tuple(token_ids), spans=tuple(spans), images=tuple(images))


TWO_IMAGES = prompt_of(3, 3, IMAGE, 2, IMAGE, 6)
PROMPTS = {
    "text": prompt_of(1, 23),
    "one": prompt_of(2, 5, IMAGE, 9),
    "two": TWO_IMAGES,
    "first": prompt_of(4, IMAGE, 1),
    "adjacent": prompt_of(5, 2, IMAGE, IMAGE, IMAGE, 3),
    "beyond the window": prompt_of(6, 30, IMAGE, 40, IMAGE, 25),
}


def assert_agrees(sequence: ScriptedSequence, path: Path) -> None:
    expected = greedy_answer(path, sequence.prompt.token_ids, sequence.prompt.images, len(sequence.answer))
    assert sequence.answer == expected.token_ids
    assert (torch.stack(sequence.logits) - expected.logits).abs().max() <= 1e-4


@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS.keys())
def test_alone(harness: Harness, checkpoint: Path, prompt: Prompt) -> None:
    assert_agrees(harness.answer(harness.begin(prompt), NUM_TOKENS), checkpoint)


@pytest.mark.parametrize("chunks", [[3, 12, 2], [4, 9, 4], [13, 4, 9]])
def test_chunked_around_images(harness: Harness, checkpoint: Path, chunks: list[int]) -> None:
    assert_agrees(harness.answer(harness.begin(TWO_IMAGES), NUM_TOKENS, chunks=chunks), checkpoint)


def test_batched_with_others(harness: Harness, checkpoint: Path) -> None:
    sequences = [harness.begin(prompt) for prompt in PROMPTS.values()]
    harness.step(*((sequence, len(sequence.prompt.token_ids)) for sequence in sequences))
    for _ in range(NUM_TOKENS - 1):
        harness.step(*((sequence, 1) for sequence in sequences))
    for sequence in sequences:
        assert_agrees(sequence, checkpoint)


def test_cached_prefix_between_images(harness: Harness, checkpoint: Path) -> None:
    prompt = prompt_of(7, 3, IMAGE, 4, IMAGE, 6)
    first = harness.answer(harness.begin(prompt), 2)
    again = harness.begin(prompt, cached=first, num_cached=2 * BLOCK_SIZE)
    assert_agrees(harness.answer(again, NUM_TOKENS), checkpoint)


@pytest.mark.parametrize("names", ["saved", "nested"])
def test_stored_layouts(tmp_path: Path, names: Names) -> None:
    path = make_gemma3_checkpoint(tmp_path, names=names)
    harness = Harness(path)
    assert_agrees(harness.answer(harness.begin(TWO_IMAGES), NUM_TOKENS), path)


@needs_kernels
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.1)])
def test_native_kernels_stay_near_float32(checkpoint: Path, dtype: torch.dtype, tolerance: float) -> None:
    assert_stays_near_float32(checkpoint, PROMPTS.values(), dtype, tolerance=tolerance)


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
    write_json(tmp_path / "config.json", config | {"mm_tokens_per_image": 200})
    with pytest.raises(CheckpointError, match="'mm_tokens_per_image': expected the square of a divisor"):
        load_model_config(tmp_path)
