"""GLM-OCR: a small decoder of GLM-4's, and an encoder for pages. Images alone: its documentation shows nothing else."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glimpse.engine.checkpoint.families.glm.glm4v import IMAGE_TEXT, read_decoder, read_images, read_vision
from glimpse.engine.checkpoint.families.qwen.qwen2_vl import embedding_merge_size, largest_medium, layout
from glimpse.engine.checkpoint.families.spec import FamilyConfig, FamilySpec
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.media.kind import MediaKind
from glimpse.media.processing.media_processing import MediaProcessing

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


def _read_config(config: Mapping[str, Any]) -> FamilyConfig:
    text = read_decoder(config, _TEXT_DEFAULTS, qkv_bias=False)
    vision = {**_VISION_DEFAULTS, **config["vision_config"]}
    encoder = read_vision(
        vision,
        text,
        intermediate_size=vision["intermediate_size"],
        merger_size=vision["out_hidden_size"] * vision.get("in_channels", 3),
        head_norms=True,
    )
    return FamilyConfig(text=text, encoder=encoder, placeholder_ids={"image": config["image_token_id"]})


def _read_media(path: Path, config: ModelConfig) -> MediaProcessing:
    return MediaProcessing(images=read_images(path, config))


GLM_OCR = FamilySpec(
    read_config=_read_config,
    module="glm",
    slot_texts={MediaKind.IMAGE: IMAGE_TEXT},
    slots_in_lines=False,
    read_media=_read_media,
    layout=layout,
    largest_medium=largest_medium,
    embedding_merge_size=embedding_merge_size,
)
