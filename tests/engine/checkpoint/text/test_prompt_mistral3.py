"""Prompts and pixels of Pixtral, Mistral 3 and LightOnOCR: equal to those of the reference's processors."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import PIL.Image
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LightOnOcrProcessor

from glimpse.engine.checkpoint.families.registry import family_of, load_model_config
from glimpse.engine.checkpoint.families.token_layout import LayoutContext
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.checkpoint.text.conversation import ChatMessage, MediaSlot
from glimpse.engine.checkpoint.text.prompt import load_prompt_builder
from glimpse.engine.checkpoint.text.tokenizer import load_tokenizer
from glimpse.engine.checkpoint.text.tools.formats import MISTRAL_ARGS, find_format
from glimpse.media.errors import MediaError
from glimpse.media.kind import MediaKind
from glimpse.media.processing.image import Image, ImageProcessing, prepare_image
from glimpse.media.processing.sizing.recipe import Detail
from tests.checkpoints.files import write_json
from tests.checkpoints.mistral3 import (
    CHAT_TEMPLATE,
    LONGEST_EDGE,
    PATCH,
    Kind,
    make_mistral3_checkpoint,
    merge_of,
    token_ids_of,
)
from tests.media.images import scene
from tests.oracles.mistral3 import image_processor


@pytest.fixture(scope="module", params=get_args(Kind))
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.fixture(scope="module")
def checkpoint(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_mistral3_checkpoint(tmp_path_factory.mktemp("mistral3") / kind, kind=kind)


@pytest.fixture(scope="module")
def config(checkpoint: Path) -> ModelConfig:
    return load_model_config(checkpoint)


def processing_of(path: Path, config: ModelConfig) -> ImageProcessing:
    images = family_of(config).read_media(path, config).images
    assert images is not None
    return images


def tokens_of(kind: Kind, checkpoint: Path, config: ModelConfig, image: Image) -> list[int]:
    context = LayoutContext(model=config, encode=load_tokenizer(checkpoint).encode)
    return family_of(config).layout(image, context).token_ids(config.placeholder_ids["image"])


def reference_tokens(kind: Kind, height: int, width: int) -> list[int]:
    """Returns the tokens of an image of this size after it is resized.

    LightOnOCR's are its processor's. That of Pixtral needs torchvision; it writes rows of placeholders, each with
    [IMG_BREAK] after it, and [IMG_END] in place of the last (`replace_image_token` in
    models/pixtral/processing_pixtral.py).
    """
    ids, token = token_ids_of(kind), PATCH * merge_of(kind)
    if kind == "lighton_ocr":
        own: Any = SimpleNamespace(image_token="*", effective_patch_size=token)
        text: Any = LightOnOcrProcessor.replace_image_token(own, {"image_sizes": [(height, width)]}, 0)
        return [ids["<|image_pad|>"]] * len(text)
    row = [*[ids["[IMG]"]] * (width // token), ids["[IMG_BREAK]"]]
    return [*(row * (height // token))[:-1], ids["[IMG_END]"]]


@settings(max_examples=30)
@given(height=st.integers(1, 400), width=st.integers(1, 400), seed=st.integers(0, 99))
def test_pixels_and_tokens_equal_the_reference_processors(
    kind: Kind, checkpoint: Path, config: ModelConfig, height: int, width: int, seed: int
) -> None:
    array = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    try:
        found = prepare_image(PIL.Image.fromarray(array), processing_of(checkpoint, config))
    except MediaError:  # more elongated than 200:1
        assert max(height, width) > 200 * min(height, width)
        return
    if max(height, width) > LONGEST_EDGE * min(height, width):  # the reference reduces a side to nothing, and fails
        assert min(found.pixels.shape[:2]) == PATCH * merge_of(kind)
        return
    processor = image_processor(checkpoint)
    normalized = processor(PIL.Image.fromarray(array), return_tensors="np")
    mean, std = (np.array(values)[:, None, None] for values in (processor.image_mean, processor.image_std))
    expected = np.moveaxis((normalized.pixel_values[0] * std + mean) * 255, 0, -1).round().astype(np.uint8)
    np.testing.assert_array_equal(found.pixels, expected)
    sides = tuple(map(int, normalized.image_sizes[0]))
    assert sides == expected.shape[:2]
    assert found.grid == (1, sides[0] // PATCH, sides[1] // PATCH)
    assert max(sides) <= LONGEST_EDGE
    assert tokens_of(kind, checkpoint, config, found) == reference_tokens(kind, *sides)


def test_low_detail_reduces_the_longest_edge(kind: Kind, checkpoint: Path, config: ModelConfig) -> None:
    processing = processing_of(checkpoint, config)
    assert processing.with_options(detail=Detail.LOW) == processing  # 140 pixels are fewer than 512
    document = json.loads((checkpoint / "preprocessor_config.json").read_text())
    folder = checkpoint.parent / "large"
    folder.mkdir(exist_ok=True)
    write_json(folder / "preprocessor_config.json", document | {"size": {"longest_edge": 1540}})
    low = processing_of(folder, config).with_options(detail=Detail.LOW)
    assert prepare_image(scene(900, 1200, 1), low).grid == (1, 36, 27 if merge_of(kind) == 1 else 28)


def test_conversations_with_images_and_tools(tmp_path: Path) -> None:
    checkpoint = make_mistral3_checkpoint(tmp_path / "own")
    config = load_model_config(checkpoint)
    image = prepare_image(scene(70, 40, 1), processing_of(checkpoint, config))
    tokenizer, builder = load_tokenizer(checkpoint), load_prompt_builder(checkpoint, config)
    context = LayoutContext(model=config, encode=tokenizer.encode)
    messages = [
        ChatMessage(role="system", content=("Be brief.",)),
        ChatMessage(role="user", content=(MediaSlot(kind=MediaKind.IMAGE), "What is it?")),
    ]
    found = builder.chat(messages, [family_of(config).layout(image, context)]).token_ids
    before, after = "<s>[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT][INST]", "What is it?[/INST]"
    tokens = tokens_of("mistral", checkpoint, config, image)
    assert found == [*tokenizer.encode(before), *tokens, *tokenizer.encode(after)]
    assert find_format(CHAT_TEMPLATE) == MISTRAL_ARGS


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"patch_size": 20}, "'patch_size': expected (14 or )?(14|28), got 20"),
        ({"size": {"height": 140, "width": 140}}, "'size.longest_edge': expected a positive integer, got None"),
        ({"resample": 2}, r"'resample': expected 3 \(bicubic\), got 2"),
        ({"do_resize": False}, "'do_resize': expected true, got False"),
    ],
)
def test_refuses_other_processing(
    checkpoint: Path, config: ModelConfig, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    document = json.loads((checkpoint / "preprocessor_config.json").read_text())
    write_json(tmp_path / "preprocessor_config.json", document | changes)
    with pytest.raises(ValueError, match=message):
        family_of(config).read_media(tmp_path, config)
