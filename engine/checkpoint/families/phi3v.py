"""Phi-3-vision and Phi-3.5-vision (arXiv 2404.14219), as published: `Phi3VForCausalLM`."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL.Image import Resampling

from glimpse.engine.checkpoint.families.reading.fields import require
from glimpse.engine.checkpoint.families.reading.vit import vit_config
from glimpse.engine.checkpoint.families.spec import FamilyConfig, FamilySpec, LargestMedium
from glimpse.engine.checkpoint.families.text import PHI3
from glimpse.engine.checkpoint.families.token_layout import LayoutContext, TokenLayout, one_run
from glimpse.engine.checkpoint.model_config.encoders import HdVisionConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.errors import CheckpointError
from glimpse.media.kind import MediaKind
from glimpse.media.processing.image import ImageProcessing
from glimpse.media.processing.media_processing import MediaProcessing
from glimpse.media.processing.preprocessor import PREPROCESSOR, positive, read_image_processor
from glimpse.media.processing.sizing.hd_tiles import MAX_TILES, HdTiles

if TYPE_CHECKING:
    from glimpse.media.medium import Medium

_PLACEHOLDER = "<|image|>"
_PLACEHOLDER_ID = 32_044
"""The placeholder's id in the published vocabulary. The reference has negative ids in its place."""
_ENCODER = "openai/clip-vit-large-patch14-336"
_ENCODER_FIELDS: Mapping[str, Any] = {
    "model_type": "clip_vision_model",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
}
"""Fields of the encoder that published documents only name. Fields of `img_processor` take precedence."""
_REQUIRED: Mapping[str, Mapping[str, Any]] = {
    "embd_layer": {
        "embedding_cls": "image",
        "projection_cls": "mlp",
        "use_hd_transform": True,
        "with_learnable_separator": True,
        "hd_transform_order": "sub_glb",
    },
    "img_processor": {"name": "clip_vision_model", "model_name": _ENCODER},
}


def _read_config(config: Mapping[str, Any]) -> FamilyConfig:
    for part, fields in _REQUIRED.items():
        for name, supported in fields.items():
            require(f"{part}.{name}", config[part].get(name), supported)
    text = PHI3.read_config(config).text
    return FamilyConfig(
        text=text,
        encoder=_read_vision(config["img_processor"]),
        # The encoder output replaces this token's embedding.
        placeholder_ids={"image": min(_PLACEHOLDER_ID, text.vocab_size - 1)},
        placeholder_texts={"image": _PLACEHOLDER},
        # The published `eos_token_id` is one that the model never generates.
        end_tokens=("<|endoftext|>", "<|end|>"),
    )


def _read_vision(processor: Mapping[str, Any]) -> HdVisionConfig:
    require("img_processor.type_feature", processor.get("type_feature", "patch"), "patch")
    vit = vit_config({**_ENCODER_FIELDS, **processor}, feature_layer=processor.get("layer_idx", -2))
    if vit.side % 2:
        raise CheckpointError(
            f"config.json: 'img_processor': expected an even number of patches on each side, got {vit.side}"
        )
    encoder = HdVisionConfig(vit=vit)
    require("img_processor.image_dim_out", processor["image_dim_out"], vit.width)
    require("img_processor.num_img_tokens", processor["num_img_tokens"], encoder.side**2)
    return encoder


def _read_media(path: Path, config: ModelConfig) -> MediaProcessing:
    encoder = config.encoder_as(HdVisionConfig)
    processor = read_image_processor(path)
    num_tokens = processor.get("num_img_tokens", encoder.side**2)
    if num_tokens != encoder.side**2:
        raise ValueError(f"{PREPROCESSOR}: 'num_img_tokens': expected {encoder.side**2}, got {num_tokens!r}")
    max_tiles = positive("num_crops", processor.get("num_crops", 1))
    if max_tiles > MAX_TILES:
        raise ValueError(f"{PREPROCESSOR}: 'num_crops': expected at most {MAX_TILES}, got {max_tiles}")
    sizing = HdTiles(tile=encoder.vit.image_size, max_tiles=max_tiles)
    return MediaProcessing(images=ImageProcessing(sizing=sizing, resampling=Resampling.BILINEAR))


def _layout(medium: "Medium", context: LayoutContext) -> TokenLayout:
    rows, columns = medium.grid[:2]
    return one_run(medium.kind, context.model.encoder_as(HdVisionConfig).num_tokens(rows, columns))


def _embedding_grid(config: ModelConfig, _kind: MediaKind, num_rows: int) -> tuple[int, ...]:
    """Returns rows and columns of tiles. Several numbers of them may have as many tokens, in one run alike."""
    encoder = config.encoder_as(HdVisionConfig)
    sides = range(1, MAX_TILES + 1)
    for rows in sides:
        for columns in sides[: MAX_TILES // rows]:
            if encoder.num_tokens(rows, columns) == num_rows:
                return rows, columns
    examples = ", ".join(str(encoder.num_tokens(1, columns)) for columns in (1, 2, 3))
    raise ValueError(f"expected the tokens of an image's tiles, overview and separators, such as {examples}")


def _largest_medium(config: ModelConfig, num_tokens: int) -> LargestMedium:
    """Returns an image of about `num_tokens` tokens, whose tiles lie side by side."""
    encoder = config.encoder_as(HdVisionConfig)
    others = encoder.num_tokens(1, 1) - encoder.side**2  # the overview and separators
    columns = max(1, min((num_tokens - others) // encoder.side**2, MAX_TILES))
    return LargestMedium.of_tiles(encoder.vit, columns, grid=(1, columns), max_batch_tiles=encoder.max_batch_tiles)


PHI3V = FamilySpec(
    read_config=_read_config,
    module="phi3v",
    slot_texts={MediaKind.IMAGE: "<|image_{}|>"},
    numbered_tags=True,
    read_media=_read_media,
    layout=_layout,
    largest_medium=_largest_medium,
    embedding_grid=_embedding_grid,
)
