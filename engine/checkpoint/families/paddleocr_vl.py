"""PaddleOCR-VL (arXiv 2510.14528): a small decoder of ERNIE 4.5's with Qwen2-VL's positions, and SigLIP's encoder for
images of any size. Images alone: its documentation shows nothing else."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from glimpse.engine.checkpoint.families.qwen.qwen2_vl import QWEN2_VL, check_theta
from glimpse.engine.checkpoint.families.reading.fields import (
    mrope_section_of,
    require,
    require_fields,
    rope_of,
    text_config,
)
from glimpse.engine.checkpoint.families.spec import FamilyConfig
from glimpse.engine.checkpoint.model_config.encoders import PaddleVisionConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.media.kind import MediaKind
from glimpse.media.processing.image import ImageProcessing, image_processing
from glimpse.media.processing.media_processing import MediaProcessing
from glimpse.media.processing.sizing.smart_resize import SmartResize

_TEXT_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 103_424,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 18,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
}
_VISION_DEFAULTS: Mapping[str, Any] = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_channels": 3,
    "image_size": 384,
    "patch_size": 14,
    "layer_norm_eps": 1e-6,
    "spatial_merge_size": 2,
}
"""Values of fields that documents leave out, as in transformers' models/paddleocr_vl/configuration_paddleocr_vl.py."""
_IMAGES = SmartResize(temporal_patch_size=1, min_pixels=384 * 384, max_pixels=3600 * 28 * 28)


def _read_config(config: Mapping[str, Any]) -> FamilyConfig:
    nested: Mapping[str, Any] = config.get("text_config") or {}  # published documents are flat
    text = {**_TEXT_DEFAULTS, **(nested or config)}
    # Like transformers, which ties them whatever a flat document says.
    tied = config.get("tie_word_embeddings", True) or nested.get("tie_word_embeddings", True)
    rope = {"rope_theta": text.get("rope_theta", 500_000.0), "mrope_section": (16, 24, 24), **rope_of(text)}
    require_fields(text, "", hidden_act="silu", use_bias=False)
    require("rope_scaling.rope_type", rope.get("rope_type", rope.get("type", "default")), "default")
    decoder = text_config(
        text,
        {"tie_word_embeddings": tied},
        rope,
        mrope_section=mrope_section_of(rope, text["head_dim"] // 2),
        qkv_bias=False,
    )
    vision = {**_VISION_DEFAULTS, **config["vision_config"]}
    require_fields(vision, "vision_config.", hidden_act="gelu_pytorch_tanh")
    check_theta(vision)
    encoder = PaddleVisionConfig(
        depth=vision["num_hidden_layers"],
        embed_dim=vision["hidden_size"],
        hidden_size=decoder.hidden_size,
        num_heads=vision["num_attention_heads"],
        intermediate_size=vision["intermediate_size"],
        in_channels=vision["num_channels"],
        patch_size=vision["patch_size"],
        patch_bias=True,
        spatial_merge_size=vision["spatial_merge_size"],
        temporal_patch_size=1,
        activation="gelu_tanh",
        norm_eps=vision["layer_norm_eps"],
        position_side=vision["image_size"] // vision["patch_size"],
    )
    return FamilyConfig(text=decoder, encoder=encoder, placeholder_ids={"image": config["image_token_id"]})


def _read_media(path: Path, _config: ModelConfig) -> MediaProcessing:
    found = image_processing(path, _IMAGES)
    sizing = msgspec.structs.replace(found.sizing, rounds_slim=True)
    return MediaProcessing(images=ImageProcessing(sizing=sizing))


PADDLEOCR_VL = replace(
    QWEN2_VL,
    read_config=_read_config,
    fallback_template=None,
    tool_template=None,
    slot_texts={MediaKind.IMAGE: "<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>"},
    read_media=_read_media,
    grounding=(),
)
