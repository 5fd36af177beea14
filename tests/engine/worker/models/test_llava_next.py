"""LLaVA-NeXT: logits and greedy answers match transformers for any division into steps and cached prefixes."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.model_config.encoders import LlavaOneVisionConfig
from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.media import MediaSpan
from glimpse.media.kind import MediaKind
from glimpse.media.processing.sizing.any_res import AnyRes
from tests.checkpoints.llava import DECODERS, IMAGE_TOKEN_ID, NEXT_RESOLUTIONS, SIDE, Names, make_next_checkpoint
from tests.checkpoints.qwen2_vl import write_json
from tests.engine.harness import BLOCK_SIZE, Harness, Prompt, ScriptedSequence
from tests.engine.levels import assert_stays_near_float32, needs_kernels
from tests.oracles.llava import next_answer, next_pixels

CHECKPOINT = make_next_checkpoint
NUM_TOKENS = 8
SIZING = AnyRes(tile=SIDE, tile_patches=4, resolutions=NEXT_RESOLUTIONS, tiles_several=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePrompt:
    """A prompt with the images that it was made of."""

    prompt: Prompt
    images: tuple[np.ndarray, ...]


def prompt_of(path: Path, seed: int, *parts: int | tuple[int, int]) -> ImagePrompt:
    """Returns a prompt of random text and images: a number of text tokens, or the height and width of an image."""
    random = np.random.default_rng(seed)
    encoder = load_model_config(path).encoder
    assert isinstance(encoder, LlavaOneVisionConfig)
    token_ids: list[int] = []
    spans: list[MediaSpan] = []
    images: list[np.ndarray] = []
    for part in parts:
        if isinstance(part, int):
            token_ids += random.integers(3, 250, part).tolist()
            continue
        images.append(random.integers(0, 256, (*part, 3), dtype=np.uint8))
        grid = SIZING.among_others().plan(*part).grid
        num_tokens = encoder.num_image_tokens(grid)
        key = hashlib.sha256(images[-1].tobytes()).digest()
        spans.append(MediaSpan(kind=MediaKind.IMAGE, start=len(token_ids), num_tokens=num_tokens, key=key, grid=grid))
        token_ids += [IMAGE_TOKEN_ID] * num_tokens
    pixels = tuple(next_pixels(path, images))
    return ImagePrompt(
        prompt=Prompt(token_ids=tuple(token_ids), spans=tuple(spans), images=pixels), images=tuple(images)
    )


@pytest.fixture(scope="module")
def prompts(checkpoint: Path) -> dict[str, ImagePrompt]:
    return {
        "text": prompt_of(checkpoint, 1, 23),
        "small": prompt_of(checkpoint, 2, 4, (20, 31), 5),
        "wide": prompt_of(checkpoint, 3, 4, (40, 290), 5),
        "tall": prompt_of(checkpoint, 4, 4, (301, 70), 5),
        "largest": prompt_of(checkpoint, 5, 2, (113, 111), 3),
        "several": prompt_of(checkpoint, 6, 2, (60, 90), 3, (200, 33), 4, (56, 56), 1),
    }


def assert_agrees(sequence: ScriptedSequence, images: ImagePrompt, path: Path) -> None:
    expected = next_answer(path, sequence.prompt.token_ids, images.images, len(sequence.answer))
    assert sequence.answer == expected.token_ids
    assert (torch.stack(sequence.logits) - expected.logits).abs().max() <= 1e-4


@pytest.mark.parametrize("name", ["text", "small", "wide", "tall", "largest", "several"])
def test_alone(harness: Harness, checkpoint: Path, prompts: dict[str, ImagePrompt], name: str) -> None:
    assert_agrees(harness.answer(harness.begin(prompts[name].prompt), NUM_TOKENS), prompts[name], checkpoint)


@pytest.mark.parametrize("size", [7, 31])
def test_chunked_within_images(harness: Harness, checkpoint: Path, prompts: dict[str, ImagePrompt], size: int) -> None:
    images = prompts["several"]
    num_chunks = (len(images.prompt.token_ids) - 1) // size
    sequence = harness.answer(harness.begin(images.prompt), NUM_TOKENS, chunks=[size] * num_chunks)
    assert_agrees(sequence, images, checkpoint)


def test_batched_with_others(harness: Harness, checkpoint: Path, prompts: dict[str, ImagePrompt]) -> None:
    sequences = [harness.begin(images.prompt) for images in prompts.values()]
    harness.step(*((sequence, len(sequence.prompt.token_ids)) for sequence in sequences))
    for _ in range(NUM_TOKENS - 1):
        harness.step(*((sequence, 1) for sequence in sequences))
    for sequence, images in zip(sequences, prompts.values(), strict=True):
        assert_agrees(sequence, images, checkpoint)


def test_cached_prefix_that_ends_within_an_image(
    harness: Harness, checkpoint: Path, prompts: dict[str, ImagePrompt]
) -> None:
    images = prompts["tall"]
    first = harness.answer(harness.begin(images.prompt), 2)
    second = harness.begin(images.prompt, cached=first, num_cached=3 * BLOCK_SIZE)
    assert_agrees(harness.answer(second, NUM_TOKENS), images, checkpoint)


@pytest.mark.parametrize(
    ("decoder", "names"),
    [(decoder, names) for decoder, names in zip(DECODERS, ("published", "saved", "nested"), strict=True)],
)
def test_decoders_and_stored_layouts(tmp_path: Path, decoder: str, names: Names) -> None:
    path = make_next_checkpoint(tmp_path, decoder=decoder, names=names)
    images = prompt_of(path, 10, 3, (150, 170), 4)
    harness = Harness(path)
    assert_agrees(harness.answer(harness.begin(images.prompt), NUM_TOKENS), images, path)


@needs_kernels
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.1)])
def test_native_kernels_stay_near_float32(
    checkpoint: Path, prompts: dict[str, ImagePrompt], dtype: torch.dtype, tolerance: float
) -> None:
    assert_stays_near_float32(checkpoint, [images.prompt for images in prompts.values()], dtype, tolerance=tolerance)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vision_feature_select_strategy": "full"}, "'vision_feature_select_strategy': expected 'default', since"),
        ({"vision_feature_layer": [-2, -5]}, "'vision_feature_layer': expected an integer"),
        ({"image_grid_pinpoints": [[336, 500]]}, "'image_grid_pinpoints': expected multiples of the encoder's 336"),
        ({"text_config": {"model_type": "granite"}}, "'text_config.model_type': expected one of .*got 'granite'"),
    ],
)
def test_refuses_unsupported_configurations(tmp_path: Path, change: dict[str, object], message: str) -> None:
    config = {
        "architectures": ["LlavaNextForConditionalGeneration"],
        "text_config": {"model_type": "llama"},
        "vision_config": {"model_type": "clip_vision_model", "image_size": 336, "patch_size": 14},
        "image_token_index": 1,
    }
    write_json(tmp_path / "config.json", config)
    assert load_model_config(tmp_path).placeholder_ids == {"image": 1}
    write_json(tmp_path / "config.json", config | change)
    with pytest.raises(CheckpointError, match=message):
        load_model_config(tmp_path)
