"""InternVL2.5, InternVL3 and InternVL3.5 as first published: `InternVLChatModel`, whose code is in the checkpoint.

The network and the tokens of media are those of `InternVLForConditionalGeneration`; names and places of fields differ.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glimpse.engine.checkpoint.families.internvl.internvl import (
    GROUNDING,
    embedding_grid,
    largest_medium,
    layout,
    read_vision,
    video_processing,
)
from glimpse.engine.checkpoint.families.reading.fields import require, require_fields
from glimpse.engine.checkpoint.families.spec import FamilyConfig, FamilySpec
from glimpse.engine.checkpoint.families.text import nested_decoder
from glimpse.engine.checkpoint.model_config.encoders import InternVisionConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.errors import CheckpointError
from glimpse.media.processing.image import ImageProcessing
from glimpse.media.processing.media_processing import MediaProcessing
from glimpse.media.processing.preprocessor import ordered, read_json
from glimpse.media.processing.sizing.aspect_tiles import AspectTiles

_DECODERS = ("qwen2", "qwen3", "llama")
_VISION_DEFAULTS: Mapping[str, Any] = {
    "hidden_size": 3200,
    "num_hidden_layers": 48,
    "num_attention_heads": 25,
    "intermediate_size": 12800,
    "image_size": 224,
    "norm_type": "rms_norm",
    "qkv_bias": False,
    "qk_normalization": True,
}
"""Values of fields that documents may leave out: those of InternViT-6B."""
_MARKERS: Mapping[str, str] = {"image": "<image>", "video": "<video>"}
"""What stands for media in a rendered prompt. Published code knows only images, which a video's frames are too."""
_CONTEXT = "<IMG_CONTEXT>"


def _read_config(config: Mapping[str, Any]) -> FamilyConfig:
    require_fields(config, "", downsample_ratio=0.5, ps_version="v2", select_layer=-1)
    require_fields(config, "", dynamic_image_size=True, use_thumbnail=True, pad2square=False)
    decoder: Mapping[str, Any] = config["llm_config"]
    if (kind := decoder["model_type"]) not in _DECODERS:
        raise CheckpointError(
            f"config.json: 'llm_config.model_type': expected one of {', '.join(_DECODERS)}; got {kind!r}; serve the"
            " same model as transformers stores it, whose name ends in -hf"
        )
    vision: Mapping[str, Any] = {**_VISION_DEFAULTS, **config["vision_config"]}
    encoder = read_vision({**vision, "attention_bias": vision["qkv_bias"], "use_qk_norm": vision["qk_normalization"]})
    require("force_image_size", config.get("force_image_size") or encoder.image_size, encoder.image_size)
    return FamilyConfig(
        text=nested_decoder({"text_config": decoder}),
        encoder=encoder,
        placeholder_ids={},
        placeholder_tokens=dict.fromkeys(_MARKERS, _CONTEXT),
        placeholder_texts=_MARKERS,
        # Fields of published documents name another one alone, as before the model learned to chat.
        end_tokens=("<|im_end|>",),
    )


def _read_media(path: Path, config: ModelConfig) -> MediaProcessing:
    """Reads `config.json`: the code of the checkpoint reads no other file about images."""
    side, document = config.encoder_as(InternVisionConfig).image_size, read_json(path / "config.json")
    min_tiles, max_tiles = ordered(document, "config.json", ("min_dynamic_patch", 1), ("max_dynamic_patch", 12))
    return MediaProcessing(
        images=ImageProcessing(sizing=AspectTiles(tile=side, min_tiles=min_tiles, max_tiles=max_tiles)),
        videos=video_processing(side),
    )


INTERNVL_CHAT = FamilySpec(
    read_config=_read_config,
    module="internvl",
    read_media=_read_media,
    layout=layout,
    largest_medium=largest_medium,
    embedding_grid=embedding_grid,
    grounding=GROUNDING,
)
