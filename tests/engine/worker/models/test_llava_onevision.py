"""LLaVA-OneVision: logits and greedy answers match transformers for any division into steps and cached prefixes."""

from pathlib import Path

import numpy as np
import pytest

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.model_config.encoders import LlavaOneVisionConfig
from glimpse.media.kind import MediaKind
from glimpse.media.processing.sizing.any_res import AnyRes
from tests.checkpoints.files import write_json
from tests.checkpoints.llava import ONEVISION_TOKEN_IDS, RESOLUTIONS, TILE, Names, make_onevision_checkpoint
from tests.checkpoints.refusals import assert_refused
from tests.engine.harness import Harness, PlacedMedium, Prompt, ScriptedSequence, prompt_with
from tests.engine.worker.models.steps import NativeSteps, assert_same
from tests.oracles.llava import onevision_answer, tiled_pixels

CHECKPOINT = make_onevision_checkpoint
NUM_TOKENS = 8
SIZING = AnyRes(tile=TILE, tile_patches=3, resolutions=RESOLUTIONS)
TOGETHER = "together"
PARTS: dict[str, tuple[int | tuple[int, ...], ...]] = {
    "text": (23,),
    "small": (4, (20, 31), 5),
    "wide": (4, (40, 290), 5),
    "tall": (4, (301, 70), 5),
    "reduced": (2, (350, 350), 3),
    "several": (2, (60, 90), 3, (200, 33), 4),
    TOGETHER: (2, (60, 90), 3, (200, 33), 4, (47, 47), 1),
    "video": (3, (5,), 6),
    "both": (3, (5,), 6, (99, 45), 2),
}


def prompt_of(path: Path, seed: int, *parts: int | tuple[int, ...], are_together: bool = False) -> Prompt:
    """Returns a prompt of random text and media.

    A number stands for that many text tokens, a pair for an image of that height and width, a single number in a tuple
    for a video of that many frames. Images that are together have no tiles.
    """
    encoder = load_model_config(path).encoder
    assert isinstance(encoder, LlavaOneVisionConfig)

    def place(random: np.random.Generator, part: tuple[int, ...]) -> PlacedMedium:
        if len(part) == 1:
            kind, grid, num_tokens = MediaKind.VIDEO, (*part, 3, 3), encoder.num_video_tokens(*part)
            content = source = random.integers(0, 256, (*part, TILE, TILE, 3), dtype=np.uint8)
        else:
            kind, grid = MediaKind.IMAGE, (0, 0, 0, 0) if are_together else SIZING.plan(*part).grid
            source, num_tokens = random.integers(0, 256, (*part, 3), dtype=np.uint8), encoder.num_image_tokens(grid)
            content = tiled_pixels(path, source, is_alone=not are_together)
        token_ids = [ONEVISION_TOKEN_IDS[f"<{kind}>"]] * num_tokens
        return PlacedMedium(token_ids=token_ids, kind=kind, grid=grid, content=content, source=source)

    return prompt_with(seed, parts, place)


@pytest.fixture(scope="module")
def prompts(checkpoint: Path) -> dict[str, Prompt]:
    return {
        name: prompt_of(checkpoint, seed, *parts, are_together=name == TOGETHER)
        for seed, (name, parts) in enumerate(PARTS.items(), 1)
    }


def assert_agrees(sequence: ScriptedSequence, path: Path) -> None:
    prompt = sequence.prompt
    media = list(zip(prompt.spans, prompt.sources, strict=True))
    expected = onevision_answer(
        path,
        prompt.token_ids,
        len(sequence.answer),
        images=[source for span, source in media if span.kind is MediaKind.IMAGE],
        frames=next((source for span, source in media if span.kind is MediaKind.VIDEO), None),
        are_together=any(not any(span.grid) for span in prompt.spans),
    )
    assert_same(sequence, expected)


class TestSteps(NativeSteps):
    agrees = staticmethod(assert_agrees)
    names = tuple(PARTS)
    divided, cached = "both", ("wide",)
    sizes = (7, 31)
    blocks = (3,)


@pytest.mark.parametrize("names", ["published", "saved", "nested"])
def test_stored_layouts(tmp_path: Path, names: Names) -> None:
    path = make_onevision_checkpoint(tmp_path, names=names, max_tiles=1)
    harness = Harness(path)
    assert_agrees(harness.answer(harness.begin(prompt_of(path, 10, 3, (150, 170), 4)), NUM_TOKENS), path)


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
    assert_refused(tmp_path, config | change, message)
