"""LFM2 (arXiv 2511.23404), a decoder of short convolutions and few layers of attention, and with eyes LFM2-VL and
LFM2.5-VL."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL.Image import Resampling

from glimpse.engine.checkpoint.families.grounding import JsonForm
from glimpse.engine.checkpoint.families.reading.fields import require, rope_of, text_config
from glimpse.engine.checkpoint.families.reading.preprocessor import resampling_of
from glimpse.engine.checkpoint.families.reading.vit import vit_config
from glimpse.engine.checkpoint.families.spec import FamilyConfig, FamilySpec, LargestMedium
from glimpse.engine.checkpoint.families.token_layout import LayoutContext, Piece, TokenLayout
from glimpse.engine.checkpoint.model_config.decoder import LayerKind, ShortConvSizes, TextConfig
from glimpse.engine.checkpoint.model_config.encoders import FlexVisionConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.errors import CheckpointError
from glimpse.media.kind import MediaKind
from glimpse.media.processing.image import ImageProcessing
from glimpse.media.processing.media_processing import MediaProcessing
from glimpse.media.processing.preprocessor import (
    PREPROCESSOR,
    check_fields,
    check_processor,
    positive,
    read_image_processor,
)
from glimpse.media.processing.sizing.patches.flex_tiles import FlexTiles

if TYPE_CHECKING:
    from glimpse.media.medium import Medium

_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 65_536,
    "hidden_size": 2560,
    "intermediate_size": 12_288,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 128_000,
    "norm_eps": 1e-5,
    "rope_theta": 1_000_000.0,
    "conv_L_cache": 3,
    "block_multiple_of": 256,
    "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": True,
    "eos_token_id": 2,
}
"""Values of fields that documents leave out, as in transformers' models/lfm2/configuration_lfm2.py."""
_VISION_DEFAULTS: Mapping[str, Any] = {"patch_size": 16, "num_patches": 256, "num_hidden_layers": 12}
_KINDS: Mapping[str, LayerKind] = {"full_attention": "full", "conv": "short_conv"}


def _read_decoder(text: Mapping[str, Any], *, tied: bool) -> TextConfig:
    text = {**_DEFAULTS, **text}
    require("conv_bias", text.get("conv_bias", False), False)
    sizes = {"rms_norm_eps": text["norm_eps"], "intermediate_size": _intermediate_size(text)}
    return text_config(
        {**text, **sizes},
        {"tie_word_embeddings": tied},
        rope_of(text),
        qkv_bias=False,
        head_norms=True,
        layer_kinds=_layer_kinds(text),
        states=ShortConvSizes(conv_width=text["hidden_size"], conv_size=text["conv_L_cache"]),
    )


def _intermediate_size(text: Mapping[str, Any]) -> int:
    """Returns the width of MLPs, of which documents have another number."""
    size: int = text.get("block_ff_dim", text["intermediate_size"])
    if not text["block_auto_adjust_ff_dim"]:
        return size
    factor, multiple = text["block_ffn_dim_multiplier"], text["block_multiple_of"]
    adjusted = int(2 * size / 3) if factor is None else int(factor * int(2 * size / 3))
    return adjusted if factor is None else -(-adjusted // multiple) * multiple


def _layer_kinds(text: Mapping[str, Any]) -> list[LayerKind]:
    count = text["num_hidden_layers"]
    attending = text.get("full_attn_idxs")
    kinds: list[str] = text.get("layer_types") or [
        "full_attention" if attending is None or index in attending else "conv" for index in range(count)
    ]
    if unknown := {*kinds} - _KINDS.keys():
        raise CheckpointError(f"config.json: 'layer_types': expected {' or '.join(_KINDS)}, got {min(unknown)!r}")
    if len({*kinds}) < len(_KINDS):
        raise CheckpointError(
            f"config.json: 'layer_types': expected both {' and '.join(_KINDS)}, got {kinds[0]!r} alone"
        )
    return [_KINDS[kind] for kind in kinds]


def _is_tied(config: Mapping[str, Any]) -> bool:
    return bool(config.get("tie_embedding", config.get("tie_word_embeddings", True)))


def _read_text_config(config: Mapping[str, Any]) -> FamilyConfig:
    return FamilyConfig(
        text=_read_decoder(config, tied=_is_tied(config)),
        placeholder_ids={},
        eos_token_ids=(_DEFAULTS["eos_token_id"],),
    )


def _read_config(config: Mapping[str, Any]) -> FamilyConfig:
    require("projector_hidden_act", config.get("projector_hidden_act", "gelu"), "gelu")
    vision = {**_VISION_DEFAULTS, **config["vision_config"]}
    require("vision_config.model_type", vision.get("model_type"), "siglip2_vision_model")
    # SigLIP2's layers are those of SigLIP. Older documents count some that are not computed.
    sizes = {
        "image_size": math.isqrt(vision["num_patches"]) * vision["patch_size"],
        "num_hidden_layers": vision["num_hidden_layers"] + config.get("vision_feature_layer", -1) + 1,
    }
    vit = vit_config({**vision, **sizes, "model_type": "siglip_vision_model"})
    encoder = FlexVisionConfig(
        vit=vit,
        shuffle=config.get("downsample_factor", 2),
        projector_size=config.get("projector_hidden_size", 2560),
        projector_norm=config.get("projector_use_layernorm", True),
        projector_bias=config.get("projector_bias", True),
    )
    image_id = config["image_token_id"] if "image_token_id" in config else config["image_token_index"]
    return FamilyConfig(
        text=_read_decoder(config["text_config"], tied=_is_tied(config)),
        encoder=encoder,
        placeholder_ids={"image": image_id},
        eos_token_ids=(_DEFAULTS["eos_token_id"],),
    )


def _read_media(path: Path, config: ModelConfig) -> MediaProcessing:
    encoder = config.encoder_as(FlexVisionConfig)
    processor = read_image_processor(path)
    resampling = resampling_of(processor, Resampling.BILINEAR)
    # Older documents say that a class resizes no images which is called after that.
    check_processor({**processor, "do_resize": True}, resampling=None)
    expected = {"encoder_patch_size": encoder.vit.patch_size, "downsample_factor": encoder.shuffle}
    check_fields(processor, PREPROCESSOR, {**expected, "use_image_special_tokens": True})
    defaults = FlexTiles()
    numbers = {
        field: positive(name, processor.get(name, getattr(defaults, field)))
        for field, name in (
            ("tile", "tile_size"),
            ("min_tiles", "min_tiles"),
            ("max_tiles", "max_tiles"),
            ("min_tokens", "min_image_tokens"),
            ("max_tokens", "max_image_tokens"),
        )
    }
    if not processor.get("do_image_splitting", True):
        numbers |= {"min_tiles": 1, "max_tiles": 1}
    _check_tiles(numbers, encoder)
    sizing = FlexTiles(
        patch_size=encoder.vit.patch_size,
        merge_size=encoder.shuffle,
        tolerance=processor.get("max_pixels_tolerance", defaults.tolerance),
        has_overview=processor.get("use_thumbnail", defaults.has_overview),
        **numbers,
    )
    return MediaProcessing(images=ImageProcessing(sizing=sizing, resampling=resampling))


def _check_tiles(numbers: Mapping[str, int], encoder: FlexVisionConfig) -> None:
    fewest, most, factor = numbers["min_tiles"], numbers["max_tiles"], encoder.vit.patch_size * encoder.shuffle
    if most > 1 and not 2 <= fewest <= most:  # a single tile is of no size that an image has without tiles
        raise ValueError(f"{PREPROCESSOR}: 'min_tiles': expected a number from 2 to 'max_tiles' ({most}), got {fewest}")
    if numbers["tile"] % factor:
        raise ValueError(f"{PREPROCESSOR}: 'tile_size': expected a multiple of {factor}, got {numbers['tile']}")


def _layout(medium: "Medium", context: LayoutContext) -> TokenLayout:
    """Returns the tokens of an image: those of its tiles, each after its place, and of its overview."""
    rows, columns, side, *own = medium.grid
    encoder = context.model.encoder_as(FlexVisionConfig)
    places = [f"<|img_row_{row}_col_{column}|>" for row in range(1, rows + 1) for column in range(1, columns + 1)]
    parts = [(place, encoder.num_tokens(side, side)) for place in places]
    if all(own):
        parts.append(("<|img_thumbnail|>" if rows else "", encoder.num_tokens(*own)))
    pieces: list[Piece] = []
    for mark, run in parts:
        pieces += [tuple(context.encode(mark if pieces else f"<|image_start|>{mark}")), run]
    return TokenLayout(kind=medium.kind, pieces=(*pieces, tuple(context.encode("<|image_end|>"))))


def _embedding_grid(_config: ModelConfig, _kind: MediaKind, _num_rows: int) -> None:
    """Returns that the size of an image is needed: it says how many tiles its rows are."""


def _largest_medium(config: ModelConfig, num_tokens: int) -> LargestMedium:
    """Returns an image of about `num_tokens` tokens, whose tiles have the size of those of published checkpoints."""
    encoder, tile = config.encoder_as(FlexVisionConfig), FlexTiles().tile
    side = tile // encoder.vit.patch_size
    columns = max(2, num_tokens // encoder.num_tokens(side, side))
    return LargestMedium(
        kind=MediaKind.IMAGE,
        grid=(1, columns, side, 0, 0),
        num_bytes=3 * columns * tile**2,
        num_positions=min(columns, encoder.max_batch_tiles) * side**2,
        width=encoder.vit.width,
        intermediate_size=encoder.vit.intermediate_size,
    )


LFM2 = FamilySpec(read_config=_read_text_config, module="lfm2")
LFM2_VL = FamilySpec(
    read_config=_read_config,
    module="lfm2",
    slots_in_lines=False,
    read_media=_read_media,
    layout=_layout,
    largest_medium=_largest_medium,
    embedding_grid=_embedding_grid,
    grounding=(JsonForm(box="bbox", scale=1),),
)
"""Boxes are shares of the image, [x1, y1, x2, y2] (LFM2.5-VL's model cards)."""
