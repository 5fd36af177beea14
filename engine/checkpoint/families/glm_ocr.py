"""GLM-OCR: a small decoder of GLM-4's, and an encoder for pages. Images alone: its documentation shows nothing else."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glimpse.engine.checkpoint.families.qwen.qwen2_vl import (
    embedding_merge_size,
    largest_medium,
    layout,
    shared_fields,
)
from glimpse.engine.checkpoint.families.reading.fields import mrope_section_of, require, rope_of, text_config
from glimpse.engine.checkpoint.families.spec import FamilyConfig, FamilySpec
from glimpse.engine.checkpoint.model_config.decoder import TextConfig
from glimpse.engine.checkpoint.model_config.encoders import VisionConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.errors import CheckpointError
from glimpse.media.kind import MediaKind
from glimpse.media.processing.image import ImageProcessing, image_processing
from glimpse.media.processing.media_processing import MediaProcessing
from glimpse.media.processing.sizing.smart_resize import SmartResize

_TEXT_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 59_392,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
}
_VISION_DEFAULTS: Mapping[str, Any] = {
    "depth": 24,
    "hidden_size": 1024,
    "num_heads": 16,
    "out_hidden_size": 1536,
    "intermediate_size": 4096,
    "rms_norm_eps": 1e-5,
    "attention_bias": True,
}
"""Values of fields that documents leave out, as in transformers' models/glm_ocr/configuration_glm_ocr.py."""
_VOLUMES = SmartResize(min_pixels=112 * 112, max_pixels=15_000 * 28 * 28)
"""Bounds of the reference, on the pixels of all frames of an image: it is repeated to fill a patch."""


def _read_decoder(config: Mapping[str, Any]) -> TextConfig:
    text = {**_TEXT_DEFAULTS, **config["text_config"]}
    rope = {"rope_theta": 10_000.0, "mrope_section": (8, 12, 12), **rope_of(text)}
    require("text_config.hidden_act", text.get("hidden_act", "silu"), "silu")
    require("text_config.rope_parameters.rope_type", rope.get("rope_type", "default"), "default")
    head_dim = text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
    factor = rope.get("partial_rotary_factor", 1.0)
    return text_config(
        text,
        config,
        rope,
        mrope_section=mrope_section_of(rope, int(head_dim * factor) // 2),
        partial_rotary_factor=factor,
        alternating_rotary=True,
        qkv_bias=False,
        output_norms=True,
    )


def _read_config(config: Mapping[str, Any]) -> FamilyConfig:
    text, vision = _read_decoder(config), {**_VISION_DEFAULTS, **config["vision_config"]}
    require("vision_config.hidden_act", vision.get("hidden_act", "silu"), "silu")
    if vision["out_hidden_size"] != text.hidden_size:
        raise CheckpointError(
            f"config.json: 'vision_config.out_hidden_size': expected the decoder's hidden_size {text.hidden_size}, "
            f"got {vision['out_hidden_size']}"
        )
    encoder = VisionConfig(
        embed_dim=vision["hidden_size"],
        hidden_size=vision["out_hidden_size"],
        intermediate_size=vision["intermediate_size"],
        gated=True,
        patch_bias=True,
        block_bias=vision["attention_bias"],
        head_norms=True,
        norm_eps=vision["rms_norm_eps"],
        **shared_fields(vision),
    )
    return FamilyConfig(text=text, encoder=encoder, placeholder_ids={"image": config["image_token_id"]})


def _read_media(path: Path, config: ModelConfig) -> MediaProcessing:
    found = image_processing(path, _VOLUMES)
    assert isinstance(found.sizing, SmartResize)
    depth = config.vision.temporal_patch_size
    sizing = SmartResize(
        patch_size=found.sizing.patch_size,
        merge_size=found.sizing.merge_size,
        temporal_patch_size=depth,
        min_pixels=found.sizing.min_pixels // depth,
        max_pixels=found.sizing.max_pixels // depth,
        enlarges_slim=True,
    )
    return MediaProcessing(images=ImageProcessing(sizing=sizing))


GLM_OCR = FamilySpec(
    read_config=_read_config,
    module="glm_ocr",
    slot_texts={MediaKind.IMAGE: "<|begin_of_image|><|image|><|end_of_image|>"},
    slots_in_lines=False,
    read_media=_read_media,
    layout=layout,
    largest_medium=largest_medium,
    embedding_merge_size=embedding_merge_size,
)
