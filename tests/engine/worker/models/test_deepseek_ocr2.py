"""DeepSeek-OCR-2: logits, greedy answers, pixels and prompts are those of transformers, in both layouts."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glimpse.engine.checkpoint.families.registry import family_of, load_model_config
from glimpse.engine.checkpoint.families.token_layout import LayoutContext
from glimpse.engine.checkpoint.model_config.encoders import PageVisionConfig
from glimpse.engine.checkpoint.model_config.model import read_json
from glimpse.engine.checkpoint.text.conversation import ChatMessage, MediaSlot
from glimpse.engine.checkpoint.text.prompt import load_prompt_builder
from glimpse.engine.checkpoint.text.tokenizer import load_tokenizer
from glimpse.engine.worker.layers.pixels import read_statistics
from glimpse.media.errors import MediaError
from glimpse.media.kind import MediaKind
from glimpse.media.processing.image import ImageProcessing, prepare_image
from glimpse.media.processing.sizing.patches.page_tiles import PageTiles
from tests.checkpoints.deepseek_ocr2 import (
    NUM_OVERVIEW_TOKENS,
    NUM_TILE_TOKENS,
    PATCH,
    PROCESSOR_CONFIG,
    TOKEN_IDS,
    make_deepseek_ocr2_checkpoint,
    make_original_checkpoint,
)
from tests.checkpoints.files import write_json
from tests.checkpoints.refusals import refused
from tests.engine.harness import PlacedMedium, Prompt, prompt_with
from tests.engine.levels import LEVELS, assert_stays_near_float32, needs_kernels
from tests.engine.worker.models.steps import LevelSteps, agreement
from tests.media.images import scene
from tests.oracles.deepseek_ocr2 import OVERVIEW, TILE, greedy_answer, processor, squares_of

CHECKPOINT = make_deepseek_ocr2_checkpoint


def make_prompt(seed: int, *parts: int | tuple[int, int]) -> Prompt:
    """Returns a prompt of numbers of text tokens, and of rows and columns of images in tiles, (0, 0) without any."""

    def place(random: np.random.Generator, grid: tuple[int, int]) -> PlacedMedium:
        num_tiles = grid[0] * grid[1]
        num_patches = num_tiles * TILE**2 + OVERVIEW**2
        return PlacedMedium(
            token_ids=[TOKEN_IDS["<image>"]] * (num_tiles * NUM_TILE_TOKENS + NUM_OVERVIEW_TOKENS + 1),
            kind=MediaKind.IMAGE,
            grid=grid,
            content=random.integers(0, 256, (num_patches, PATCH, PATCH, 3), dtype=np.uint8),
        )

    return prompt_with(seed, parts, place)


PROMPTS = {
    "text": make_prompt(1, 90),
    "image": make_prompt(2, 5, (0, 0), 9),
    "page": make_prompt(3, 3, (2, 1), 4),
}


class TestSteps(LevelSteps):
    agrees = staticmethod(agreement(greedy_answer, "spans", "images"))
    divided, cached = "image", ("page",)
    sizes, blocks = (61,), (20,)


@needs_kernels
def test_experts_in_8_bits_stay_near_float32_at_every_level(checkpoint: Path) -> None:
    assert_stays_near_float32(checkpoint, [PROMPTS["text"]], torch.bfloat16, quantization="int8", tolerance=0.1)


@needs_kernels
def test_pages_stay_near_float32_in_bfloat16(checkpoint: Path) -> None:
    assert_stays_near_float32(checkpoint, [PROMPTS["page"]], torch.bfloat16, tolerance=0.1, levels=LEVELS[-1:])


def test_the_published_layout_reads_the_same(tmp_path: Path) -> None:
    path = make_original_checkpoint(tmp_path)
    config, tokens = load_model_config(path), read_json(path / "tokenizer.json")["added_tokens"]
    (image_id,) = (each["id"] for each in tokens if each["content"] == "<image>")
    width = config.encoder_as(PageVisionConfig).width
    document = {
        "architectures": ["DeepseekOcr2ForConditionalGeneration"],
        "dtype": "float32",
        "image_token_id": image_id,
        "text_config": {
            **read_json(path / "config.json")["language_config"],
            "mlp_layer_types": ["dense", "sparse", "sparse"],
        },
        "vision_config": {
            "sam_config": {
                "hidden_size": 16,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "global_attn_indexes": [1],
                "downsample_channels": [512, width],
            },
            "encoder_config": {
                "hidden_size": width,
                "intermediate_size": 4864,
                "num_hidden_layers": 24,
                "num_attention_heads": 14,
                "num_key_value_heads": 2,
                "rope_parameters": {"rope_theta": 1_000_000.0, "rope_type": "default"},
            },
        },
    }
    write_json(path / "config.json", document)
    assert replace(load_model_config(path), architecture=config.architecture) == config
    assert family_of(config).read_media(path, config).images == ImageProcessing(sizing=PageTiles())
    assert read_statistics(path).mean == read_statistics(path).std == (0.5, 0.5, 0.5)


SIZES = ((40, 30), (96, 96), (97, 50), (50, 97), (300, 100), (100, 300), (128, 255), (410, 300), (1, 90), (700, 9))


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_pixels_and_tokens_are_those_of_the_reference(
    checkpoint: Path, processing: ImageProcessing, width: int, height: int
) -> None:
    drawn, reference = scene(width, height, 1), processor(checkpoint)
    image = prepare_image(drawn, processing)
    tiles, overview = squares_of(image.pixels, *image.grid)
    values = reference.image_processor([drawn], do_normalize=False, do_rescale=False, return_tensors="np")
    assert values["num_local_patches"].tolist() == [len(tiles)]
    assert np.array_equal(values["pixel_values"].transpose(0, 2, 3, 1), overview)
    if len(tiles):
        assert np.array_equal(values["pixel_values_local"].transpose(0, 2, 3, 1), tiles)
    config, tokenizer = load_model_config(checkpoint), load_tokenizer(checkpoint)
    layout = family_of(config).layout(image, LayoutContext(model=config, encode=tokenizer.encode))
    message = ChatMessage(role="user", content=(MediaSlot(kind=MediaKind.IMAGE), "Free OCR."))
    builder = load_prompt_builder(checkpoint, config)
    (expected,) = reference(text=["<image>\nFree OCR."], images=[drawn])["input_ids"]
    assert builder.chat([message], [layout]).token_ids == [TOKEN_IDS["<｜begin▁of▁sentence｜>"], *expected]
    assert builder.text("<image>\nFree OCR.", [layout]).token_ids == builder.chat([message], [layout]).token_ids


def test_an_image_that_is_too_slim_is_refused(processing: ImageProcessing) -> None:
    with pytest.raises(MediaError, match="too elongated"):
        processing.sizing.plan(1, 400)


def test_messages_follow_each_other_without_marks(checkpoint: Path) -> None:
    messages = [
        ChatMessage(role="system", content=("Read. ",)),
        ChatMessage(role="user", content=("What is it?",)),
        ChatMessage(role="assistant", content=("A page.",)),
        ChatMessage(role="user", content=("And now?",)),
    ]
    tokenizer = load_tokenizer(checkpoint)
    found = load_prompt_builder(checkpoint, load_model_config(checkpoint)).chat(messages, []).token_ids
    assert found == tokenizer.encode("<｜begin▁of▁sentence｜>Read. What is it?A page.And now?")


def test_messages_may_spell_tokens_that_ask_and_no_others(checkpoint: Path) -> None:
    tokenizer, config = load_tokenizer(checkpoint), load_model_config(checkpoint)
    builder = load_prompt_builder(checkpoint, config)
    text = "<|grounding|>Locate <|ref|>it<|/ref|>."
    (start, *asked) = builder.chat([ChatMessage(role="user", content=(text,))], []).token_ids
    assert (start, asked) == (TOKEN_IDS["<｜begin▁of▁sentence｜>"], tokenizer.encode(text))
    assert TOKEN_IDS["<|grounding|>"] == asked[0]
    marks = ["<image>", "<|det|>", "<|/det|>", "<｜end▁of▁sentence｜>"]
    (_, *plain) = builder.chat([ChatMessage(role="user", content=("".join(marks),))], []).token_ids
    assert not {*plain} & {*TOKEN_IDS.values()}


def test_rows_in_place_of_an_image_are_those_of_whole_tiles(checkpoint: Path) -> None:
    config = load_model_config(checkpoint)
    grid = family_of(config).embedding_grid
    assert [grid(config, MediaKind.IMAGE, number) for number in (257, 401, 689)] == [(0, 0), (1, 1), (1, 3)]
    for number in (256, 258, 400):
        with pytest.raises(ValueError, match="expected 257 tokens of an overview, and 144 more for each tile"):
            grid(config, MediaKind.IMAGE, number)


test_refuses_unsupported_configurations = refused(
    ({"text_config": {"use_mla": True}}, "'text_config.use_mla': expected False, got True"),
    ({"text_config": {"kv_lora_rank": 512}}, "'text_config.kv_lora_rank': expected None, got 512"),
    ({"text_config": {"topk_method": "noaux_tc"}}, "'text_config.topk_method': expected 'greedy', got 'noaux_tc'"),
    ({"text_config": {"routed_scaling_factor": 2.5}}, "'text_config.routed_scaling_factor': expected 1.0, got 2.5"),
    ({"text_config": {"mlp_layer_types": ["moe"] * 3}}, "'text_config.mlp_layer_types': expected 'dense' or"),
    ({"vision_config": {"sam_config": {"use_rel_pos": False}}}, "'vision_config.sam_config.use_rel_pos': expected"),
    (
        {"vision_config": {"encoder_config": {"hidden_size": 64}}},
        r"'vision_config.sam_config.downsample_channels\[1\]': expected 64, got 32",
    ),
)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"crop_to_patches": False}, "'crop_to_patches': expected True, got False"),
        ({"tile_size": 64}, "'tile_size': expected 96, got 64"),
        ({"size": {"height": 96, "width": 96}}, "'size': expected {'height': 128, 'width': 128}, got"),
        ({"min_patches": 7}, "'min_patches': expected at most 6, got 7"),
    ],
)
def test_refuses_other_processing(tmp_path: Path, checkpoint: Path, fields: Mapping[str, Any], message: str) -> None:
    images: dict[str, Any] = dict(PROCESSOR_CONFIG["image_processor"])  # type: ignore[arg-type]
    write_json(tmp_path / "processor_config.json", {**PROCESSOR_CONFIG, "image_processor": images | dict(fields)})
    config = load_model_config(checkpoint)
    with pytest.raises(ValueError, match=message):
        family_of(config).read_media(tmp_path, config)
