"""LLaVA-NeXT: logits and greedy answers match transformers for any division into steps and cached prefixes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.model_config.encoders import LlavaOneVisionConfig
from glimpse.media.kind import MediaKind
from glimpse.media.processing.sizing.any_res import AnyRes
from tests.checkpoints.files import write_json
from tests.checkpoints.llava import DECODERS, IMAGE_TOKEN_ID, NEXT_RESOLUTIONS, SIDE, Names, make_next_checkpoint
from tests.checkpoints.refusals import assert_refused
from tests.engine.harness import Harness, PlacedMedium, Prompt, prompt_with
from tests.engine.worker.models.steps import NativeSteps, agreement
from tests.oracles.llava import next_answer, next_pixels

CHECKPOINT = make_next_checkpoint
NUM_TOKENS = 8
SIZING = AnyRes(tile=SIDE, tile_patches=4, resolutions=NEXT_RESOLUTIONS, tiles_several=True)
PARTS: dict[str, tuple[int | tuple[int, int], ...]] = {
    "text": (23,),
    "small": (4, (20, 31), 5),
    "wide": (4, (40, 290), 5),
    "tall": (4, (301, 70), 5),
    "largest": (2, (113, 111), 3),
    "several": (2, (60, 90), 3, (200, 33), 4, (56, 56), 1),
}


def prompt_of(path: Path, seed: int, *parts: int | tuple[int, int]) -> Prompt:
    """Returns a prompt of random text and images: a number of text tokens, or the height and width of an image."""
    encoder = load_model_config(path).encoder
    assert isinstance(encoder, LlavaOneVisionConfig)

    def place(random: np.random.Generator, part: tuple[int, int]) -> PlacedMedium:
        image = random.integers(0, 256, (*part, 3), dtype=np.uint8)
        grid = SIZING.among_others().plan(*part).grid
        token_ids = [IMAGE_TOKEN_ID] * encoder.num_image_tokens(grid)
        return PlacedMedium(token_ids=token_ids, kind=MediaKind.IMAGE, grid=grid, content=image, source=image)

    prompt = prompt_with(seed, parts, place, text_ids=(3, 250))
    return replace(prompt, images=tuple(next_pixels(path, prompt.sources)))


@pytest.fixture(scope="module")
def prompts(checkpoint: Path) -> dict[str, Prompt]:
    return {name: prompt_of(checkpoint, seed, *parts) for seed, (name, parts) in enumerate(PARTS.items(), 1)}


assert_agrees = agreement(next_answer, "sources")


class TestSteps(NativeSteps):
    agrees = staticmethod(assert_agrees)
    names = tuple(PARTS)
    divided, cached = "several", ("tall",)
    sizes = (7, 31)
    blocks = (3,)


@pytest.mark.parametrize(
    ("decoder", "names"),
    [(decoder, names) for decoder, names in zip(DECODERS, ("published", "saved", "nested"), strict=True)],
)
def test_decoders_and_stored_layouts(tmp_path: Path, decoder: str, names: Names) -> None:
    path = make_next_checkpoint(tmp_path, decoder=decoder, names=names)
    harness = Harness(path)
    assert_agrees(harness.answer(harness.begin(prompt_of(path, 10, 3, (150, 170), 4)), NUM_TOKENS), path)


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
    assert_refused(tmp_path, config | change, message)
