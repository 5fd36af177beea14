"""Pixtral (arXiv 2410.07073), Mistral Small 3.1 and later, and Ministral 3: one encoder, and decoders of Mistral's; and
LightOnOCR, which has the same encoder and a decoder of Qwen3's."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glimpse.engine.checkpoint.families.llava.llava import token_id
from glimpse.engine.checkpoint.families.qwen.qwen2_vl import embedding_merge_size, largest_medium
from glimpse.engine.checkpoint.families.reading.fields import require_fields
from glimpse.engine.checkpoint.families.spec import FamilyConfig, FamilySpec
from glimpse.engine.checkpoint.families.text import nested_decoder, nested_eos_token_ids
from glimpse.engine.checkpoint.families.token_layout import LayoutContext, Piece, TokenLayout, one_run
from glimpse.engine.checkpoint.model_config.encoders import PixtralVisionConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.media.processing.image import ImageProcessing
from glimpse.media.processing.media_processing import MediaProcessing
from glimpse.media.processing.preprocessor import PREPROCESSOR, check_processor, positive, read_image_processor
from glimpse.media.processing.sizing.patches.longest_edge import LongestEdge

if TYPE_CHECKING:
    from glimpse.media.medium import Medium

_VISION_DEFAULTS: Mapping[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_channels": 3,
    "patch_size": 16,
    "hidden_act": "gelu",
}
"""Values of fields that documents leave out, as in transformers' models/pixtral/configuration_pixtral.py."""


def _read_config(config: Mapping[str, Any], *, defaults: Mapping[str, Any], row_breaks: bool) -> FamilyConfig:
    config = {**defaults, **config}
    text = nested_decoder(config)
    expected = {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"}
    require_fields(config, "", projector_hidden_act="gelu", **expected)
    vision = {**_VISION_DEFAULTS, **config["vision_config"]}
    require_fields(vision, "vision_config.", model_type="pixtral", hidden_act="silu")
    rope: Mapping[str, Any] = vision.get("rope_parameters") or {}
    return FamilyConfig(
        text=text,
        encoder=PixtralVisionConfig(
            depth=vision["num_hidden_layers"],
            embed_dim=vision["hidden_size"],
            hidden_size=text.hidden_size,
            num_heads=vision["num_attention_heads"],
            intermediate_size=vision["intermediate_size"],
            in_channels=vision["num_channels"],
            patch_size=vision["patch_size"],
            spatial_merge_size=config.get("spatial_merge_size", 2),
            temporal_patch_size=1,
            gated=True,
            block_bias=False,
            norm_eps=1e-5,
            rope_theta=float(rope.get("rope_theta", vision.get("rope_theta", 10_000.0))),
            merged_norm_eps=text.rms_norm_eps if config["model_type"] != "llava" else None,
            projector_bias=config.get("multimodal_projector_bias", False),
            row_breaks=row_breaks,
        ),
        placeholder_ids={"image": token_id(config, "image")},
        eos_token_ids=nested_eos_token_ids(config),
    )


def _read_media(path: Path, config: ModelConfig) -> MediaProcessing:
    """Reads the processing of images. Their sides are whole tokens, whatever patches the file names: the processor that
    transformers puts around it says so for Mistral 3."""
    vision = config.encoder_as(PixtralVisionConfig)
    processor = read_image_processor(path)
    check_processor(processor)
    token = vision.patch_size * vision.spatial_merge_size
    patch = processor.get("patch_size", token)
    side = patch.get("height") if isinstance(patch, dict) else patch
    sides = (vision.patch_size, token) if vision.row_breaks else (token,)
    if side not in sides or patch not in (side, {"height": side, "width": side}):
        raise ValueError(f"{PREPROCESSOR}: 'patch_size': expected {' or '.join(map(str, sides))}, got {patch!r}")
    size: Mapping[str, Any] = processor.get("size") or {}
    longest = positive("size.longest_edge", size.get("longest_edge"))
    sizing = LongestEdge(longest_edge=longest, patch_size=vision.patch_size, merge_size=vision.spatial_merge_size)
    return MediaProcessing(images=ImageProcessing(sizing=sizing))


def _layout(medium: "Medium", context: LayoutContext) -> TokenLayout:
    """Returns the tokens of an image: one for each square of patches, and one after each row."""
    vision = context.model.encoder_as(PixtralVisionConfig)
    rows, columns = (side // vision.spatial_merge_size for side in medium.grid[1:])
    if not vision.row_breaks:
        return one_run(medium.kind, rows * columns)
    row_end, image_end = (tuple(context.encode(token)) for token in ("[IMG_BREAK]", "[IMG_END]"))
    pieces: list[Piece] = [columns, row_end] * rows
    return TokenLayout(kind=medium.kind, pieces=(*pieces[:-1], image_end))


MISTRAL3 = FamilySpec(
    read_config=partial(_read_config, defaults={}, row_breaks=True),
    module="mistral3",
    slots_in_lines=False,
    read_media=_read_media,
    layout=_layout,
    largest_medium=largest_medium,
    embedding_merge_size=embedding_merge_size,
)
PIXTRAL = replace(
    MISTRAL3,
    read_config=partial(
        _read_config,
        defaults={
            "spatial_merge_size": 1,
            "multimodal_projector_bias": True,
            "vision_feature_select_strategy": "default",
            "vision_feature_layer": -2,
        },
        row_breaks=True,
    ),
)
LIGHTON_OCR = replace(
    MISTRAL3,
    read_config=partial(
        _read_config, defaults={"tie_word_embeddings": True, "image_token_id": 151_655}, row_breaks=False
    ),
)
