"""LLaVA-OneVision: logits and greedy answers match transformers for any division into steps and cached prefixes."""

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
from tests.checkpoints.llava import ONEVISION_TOKEN_IDS, RESOLUTIONS, TILE, Names, make_onevision_checkpoint
from tests.checkpoints.qwen2_vl import write_json
from tests.engine.harness import BLOCK_SIZE, Harness, Prompt, ScriptedSequence
from tests.engine.levels import assert_stays_near_float32, needs_kernels
from tests.oracles.llava import onevision_answer, tiled_pixels

CHECKPOINT = make_onevision_checkpoint
NUM_TOKENS = 8
SIZING = AnyRes(tile=TILE, tile_patches=3, resolutions=RESOLUTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaPrompt:
    """A prompt with the images and the video that it was made of."""

    prompt: Prompt
    images: tuple[np.ndarray, ...]
    frames: np.ndarray | None
    are_together: bool


def prompt_of(path: Path, seed: int, *parts: int | tuple[int, ...], are_together: bool = False) -> MediaPrompt:
    """Returns a prompt of random text and media.

    A number stands for that many text tokens, a pair for an image of that height and width, a single number in a tuple
    for a video of that many frames.
    """
    random = np.random.default_rng(seed)
    encoder = load_model_config(path).encoder
    assert isinstance(encoder, LlavaOneVisionConfig)
    token_ids: list[int] = []
    spans: list[MediaSpan] = []
    pixels: list[np.ndarray] = []
    images: list[np.ndarray] = []
    frames = None
    for part in parts:
        if isinstance(part, int):
            token_ids += random.integers(0, 256, part).tolist()
            continue
        if len(part) == 1:
            kind, grid = MediaKind.VIDEO, (*part, 3, 3)
            frames = random.integers(0, 256, (*part, TILE, TILE, 3), dtype=np.uint8)
            pixels.append(frames)
            num_tokens = encoder.num_video_tokens(*part)
        else:
            kind, grid = MediaKind.IMAGE, (0, 0, 0, 0) if are_together else SIZING.plan(*part).grid
            images.append(random.integers(0, 256, (*part, 3), dtype=np.uint8))
            pixels.append(tiled_pixels(path, images[-1], is_alone=not are_together))
            num_tokens = encoder.num_image_tokens(grid)
        key = hashlib.sha256(pixels[-1].tobytes()).digest()
        spans.append(MediaSpan(kind=kind, start=len(token_ids), num_tokens=num_tokens, key=key, grid=grid))
        token_ids += [ONEVISION_TOKEN_IDS[f"<{kind}>"]] * num_tokens
    prompt = Prompt(token_ids=tuple(token_ids), spans=tuple(spans), images=tuple(pixels))
    return MediaPrompt(prompt=prompt, images=tuple(images), frames=frames, are_together=are_together)


@pytest.fixture(scope="module")
def prompts(checkpoint: Path) -> dict[str, MediaPrompt]:
    return {
        "text": prompt_of(checkpoint, 1, 23),
        "small": prompt_of(checkpoint, 2, 4, (20, 31), 5),
        "wide": prompt_of(checkpoint, 3, 4, (40, 290), 5),
        "tall": prompt_of(checkpoint, 4, 4, (301, 70), 5),
        "reduced": prompt_of(checkpoint, 5, 2, (350, 350), 3),
        "several": prompt_of(checkpoint, 6, 2, (60, 90), 3, (200, 33), 4),
        "together": prompt_of(checkpoint, 7, 2, (60, 90), 3, (200, 33), 4, (47, 47), 1, are_together=True),
        "video": prompt_of(checkpoint, 8, 3, (5,), 6),
        "both": prompt_of(checkpoint, 9, 3, (5,), 6, (99, 45), 2),
    }


def assert_agrees(sequence: ScriptedSequence, media: MediaPrompt, path: Path) -> None:
    expected = onevision_answer(
        path,
        sequence.prompt.token_ids,
        len(sequence.answer),
        images=media.images,
        frames=media.frames,
        are_together=media.are_together,
    )
    assert sequence.answer == expected.token_ids
    assert (torch.stack(sequence.logits) - expected.logits).abs().max() <= 1e-4


NAMES = ("text", "small", "wide", "tall", "reduced", "several", "together", "video", "both")


@pytest.mark.parametrize("name", NAMES)
def test_alone(harness: Harness, checkpoint: Path, prompts: dict[str, MediaPrompt], name: str) -> None:
    assert_agrees(harness.answer(harness.begin(prompts[name].prompt), NUM_TOKENS), prompts[name], checkpoint)


@pytest.mark.parametrize("size", [7, 31])
def test_chunked_within_media(harness: Harness, checkpoint: Path, prompts: dict[str, MediaPrompt], size: int) -> None:
    media = prompts["both"]
    num_chunks = (len(media.prompt.token_ids) - 1) // size
    sequence = harness.answer(harness.begin(media.prompt), NUM_TOKENS, chunks=[size] * num_chunks)
    assert_agrees(sequence, media, checkpoint)


def test_batched_with_others(harness: Harness, checkpoint: Path, prompts: dict[str, MediaPrompt]) -> None:
    sequences = [harness.begin(media.prompt) for media in prompts.values()]
    harness.step(*((sequence, len(sequence.prompt.token_ids)) for sequence in sequences))
    for _ in range(NUM_TOKENS - 1):
        harness.step(*((sequence, 1) for sequence in sequences))
    for sequence, media in zip(sequences, prompts.values(), strict=True):
        assert_agrees(sequence, media, checkpoint)


def test_cached_prefix_that_ends_within_an_image(
    harness: Harness, checkpoint: Path, prompts: dict[str, MediaPrompt]
) -> None:
    media = prompts["wide"]
    first = harness.answer(harness.begin(media.prompt), 2)
    second = harness.begin(media.prompt, cached=first, num_cached=3 * BLOCK_SIZE)
    assert_agrees(harness.answer(second, NUM_TOKENS), media, checkpoint)


@pytest.mark.parametrize("names", ["published", "saved", "nested"])
def test_stored_layouts(tmp_path: Path, names: Names) -> None:
    path = make_onevision_checkpoint(tmp_path, names=names, max_tiles=1)
    media = prompt_of(path, 10, 3, (150, 170), 4)
    harness = Harness(path)
    assert_agrees(harness.answer(harness.begin(media.prompt), NUM_TOKENS), media, path)


@needs_kernels
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.1)])
def test_native_kernels_stay_near_float32(
    checkpoint: Path, prompts: dict[str, MediaPrompt], dtype: torch.dtype, tolerance: float
) -> None:
    assert_stays_near_float32(checkpoint, [media.prompt for media in prompts.values()], dtype, tolerance=tolerance)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vision_aspect_ratio": "square"}, "'vision_aspect_ratio': expected 'anyres_max_N', got 'square'"),
        ({"vision_aspect_ratio": "anyres_max_0"}, "expected 'anyres_max_N', got 'anyres_max_0'"),
        ({"image_grid_pinpoints": [[384, 500]]}, "'image_grid_pinpoints': expected multiples of the encoder's 384"),
        ({"image_grid_pinpoints": []}, "'image_grid_pinpoints': expected multiples of the encoder's 384"),
        (
            {"vision_config": {"model_type": "clip_vision_model", "image_size": 384}},
            "'vision_config.model_type': expected an encoder without class token",
        ),
    ],
)
def test_refuses_unsupported_configurations(tmp_path: Path, change: dict[str, object], message: str) -> None:
    config = {
        "architectures": ["LlavaOnevisionForConditionalGeneration"],
        "text_config": {"model_type": "qwen2"},
        "vision_config": {"model_type": "siglip_vision_model", "image_size": 384, "patch_size": 14},
        "image_token_index": 1,
        "video_token_index": 2,
    }
    write_json(tmp_path / "config.json", config)
    assert load_model_config(tmp_path).placeholder_ids == {"image": 1, "video": 2}
    write_json(tmp_path / "config.json", config | change)
    with pytest.raises(CheckpointError, match=message):
        load_model_config(tmp_path)
