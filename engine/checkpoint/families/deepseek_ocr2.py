"""DeepSeek-OCR-2 (arXiv 2601.20552), as published (`DeepseekOCR2ForCausalLM`) and as transformers stores it."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glimpse.engine.checkpoint.families.grounding import TextForm
from glimpse.engine.checkpoint.families.reading.fields import require, require_fields, rope_of, text_config
from glimpse.engine.checkpoint.families.spec import FamilyConfig, FamilySpec, LargestMedium
from glimpse.engine.checkpoint.families.token_layout import LayoutContext, TokenLayout, one_run
from glimpse.engine.checkpoint.model_config.decoder import ExpertsConfig, TextConfig
from glimpse.engine.checkpoint.model_config.encoders import PageVisionConfig, SamConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.errors import CheckpointError
from glimpse.media.kind import MediaKind
from glimpse.media.processing.image import ImageProcessing
from glimpse.media.processing.media_processing import MediaProcessing
from glimpse.media.processing.preprocessor import (
    PREPROCESSOR,
    check_fields,
    check_processor,
    ordered,
    read_image_processor,
)
from glimpse.media.processing.sizing.patches.page_tiles import PageTiles

if TYPE_CHECKING:
    from glimpse.media.medium import Medium

_TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
{%- for part in message.content %}
{%- if part.type == 'image' %}
{{- '<image>\\n' }}
{%- elif part.type == 'text' %}
{{- part.text }}
{%- else %}
{{- raise_exception('this model does not support content of type ' + part.type) }}
{%- endif %}
{%- endfor %}
{%- endfor %}
"""
"""The published format, "plain": messages follow each other without marks of who says them."""
_TEXT_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 102_400,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "moe_intermediate_size": 1407,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "eos_token_id": 2,
    "rope_theta": 10_000.0,
}
_SAM_DEFAULTS: Mapping[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "output_channels": 256,
    "downsample_channels": (512, 896),
    "image_size": 1024,
    "patch_size": 16,
    "window_size": 14,
    "global_attn_indexes": (2, 5, 8, 11),
    "mlp_ratio": 4.0,
    "qkv_bias": True,
    "layer_norm_eps": 1e-6,
}
_ENCODER_DEFAULTS: Mapping[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 22_016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
}
"""Values of fields that documents leave out, as in transformers'
models/deepseek_ocr2/configuration_deepseek_ocr2.py."""
_PUBLISHED_ENCODER: Mapping[str, Any] = {
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "rope_theta": 1_000_000.0,
}
"""The transformer of published documents, which only name it: that of Qwen2-0.5B."""


def _read_config(config: Mapping[str, Any]) -> FamilyConfig:
    text = {**_TEXT_DEFAULTS, **config["text_config"]}
    return FamilyConfig(
        text=_read_decoder(text, tied=bool(config.get("tie_word_embeddings", False))),
        encoder=_read_vision(config["vision_config"]),
        placeholder_ids={"image": config.get("image_token_id", 128_815)},
        eos_token_ids=(text["eos_token_id"],),
    )


def _read_published_config(config: Mapping[str, Any]) -> FamilyConfig:
    text: Mapping[str, Any] = config["language_config"]
    vision, projector = config["vision_config"]["width"], config["projector_config"]
    require("projector_config.projector_type", projector["projector_type"], "linear")
    sam, encoder = vision["sam_vit_b"], vision["qwen2-0-5b"]
    require("projector_config.input_dim", projector["input_dim"], encoder["dim"])
    names = {"hidden_size": "width", "num_hidden_layers": "layers", "num_attention_heads": "heads"}
    family = _read_config(
        {
            "text_config": text,
            "vision_config": {
                "sam_config": {
                    **{name: sam[published] for name, published in names.items()},
                    "global_attn_indexes": sam["global_attn_indexes"],
                    # Not what the document says: the last convolution is as wide as the transformer behind it.
                    "downsample_channels": (_SAM_DEFAULTS["downsample_channels"][0], encoder["dim"]),
                },
                "encoder_config": {**_PUBLISHED_ENCODER, "hidden_size": encoder["dim"]},
            },
        }
    )
    return replace(
        family,
        placeholder_ids={},
        placeholder_tokens={"image": "<image>"},
        dtype=text.get("torch_dtype", family.dtype),
    )


def _read_decoder(text: Mapping[str, Any], *, tied: bool) -> TextConfig:
    require_fields(
        text,
        "text_config.",
        use_mla=False,
        kv_lora_rank=None,
        hidden_act="silu",
        attention_bias=False,
        mlp_bias=False,
        topk_method="greedy",
        scoring_func="softmax",
        norm_topk_prob=False,
        routed_scaling_factor=1.0,
    )
    return text_config(text, {"tie_word_embeddings": tied}, rope_of(text), qkv_bias=False, experts=_read_experts(text))


def _read_experts(text: Mapping[str, Any]) -> ExpertsConfig:
    num_layers = text["num_hidden_layers"]
    num_dense = text.get("first_k_dense_replace", 0)
    require("text_config.moe_layer_freq", text.get("moe_layer_freq", 1), 1)
    kinds = text.get("mlp_layer_types") or ["dense"] * num_dense + ["sparse"] * (num_layers - num_dense)
    if len(kinds) != num_layers or not {*kinds} <= {"dense", "sparse"}:
        raise CheckpointError(
            f"config.json: 'text_config.mlp_layer_types': expected 'dense' or 'sparse' for each of {num_layers} layers,"
            f" got {kinds}"
        )
    return ExpertsConfig(
        num_experts=text["n_routed_experts"],
        num_chosen=text["num_experts_per_tok"],
        intermediate_size=text["moe_intermediate_size"],
        renormalized=False,
        layers=frozenset(index for index, kind in enumerate(kinds) if kind == "sparse"),
        shared_size=text["n_shared_experts"] * text["moe_intermediate_size"],
        shared_gate=False,
    )


def _read_vision(vision: Mapping[str, Any]) -> PageVisionConfig:
    encoder = {**_ENCODER_DEFAULTS, **(vision.get("encoder_config") or {})}
    rope = rope_of(encoder)
    require_fields(encoder, "vision_config.encoder_config.", hidden_act="silu", use_sliding_window=False)
    require_fields(rope, "vision_config.encoder_config.rope_parameters.", rope_type="default")
    sam = _read_sam({**_SAM_DEFAULTS, **(vision.get("sam_config") or {})})
    require("vision_config.sam_config.downsample_channels[1]", sam.channels[2], encoder["hidden_size"])
    return PageVisionConfig(
        sam=sam,
        width=encoder["hidden_size"],
        intermediate_size=encoder["intermediate_size"],
        num_layers=encoder["num_hidden_layers"],
        num_heads=encoder["num_attention_heads"],
        num_kv_heads=encoder.get("num_key_value_heads") or encoder["num_attention_heads"],
        norm_eps=encoder["rms_norm_eps"],
        rope_theta=float(rope.get("rope_theta", encoder["rope_theta"])),
    )


def _read_sam(sam: Mapping[str, Any]) -> SamConfig:
    part = "vision_config.sam_config."
    require_fields(sam, part, hidden_act="gelu", num_channels=3, use_abs_pos=True, use_rel_pos=True)
    first, second = sam["downsample_channels"] or _SAM_DEFAULTS["downsample_channels"]
    return SamConfig(
        width=sam["hidden_size"],
        intermediate_size=sam.get("mlp_dim") or int(sam["hidden_size"] * sam["mlp_ratio"]),
        num_layers=sam["num_hidden_layers"],
        num_heads=sam["num_attention_heads"],
        position_side=sam["image_size"] // sam["patch_size"],
        patch_size=sam["patch_size"],
        window=sam["window_size"],
        full_attention_layers=frozenset(sam["global_attn_indexes"]),
        channels=(sam["output_channels"], first, second),
        qkv_bias=sam["qkv_bias"],
        norm_eps=sam["layer_norm_eps"],
    )


def _read_media(path: Path, config: ModelConfig) -> MediaProcessing:
    """Reads the processing of images, which the published code has in place of a file."""
    encoder, processor = config.encoder_as(PageVisionConfig), read_image_processor(path)
    check_processor(processor)
    side, tile = map(encoder.pixels, (encoder.overview_side, encoder.tile_side))
    expected = {
        "size": {"height": side, "width": side},
        "tile_size": tile,
        "crop_to_patches": True,
        "patch_size": encoder.sam.patch_size,
        "downsample_ratio": 4,
    }
    check_fields(processor, PREPROCESSOR, expected)
    defaults = PageTiles()
    limits = ("min_patches", defaults.min_tiles), ("max_patches", defaults.max_tiles)
    fewest, most = ordered(processor, PREPROCESSOR, *limits)
    red, green, blue = processor.get("background_color", defaults.padding)
    sizing = PageTiles(
        patch_size=encoder.sam.patch_size,
        side=side,
        tile=tile,
        min_tiles=fewest,
        max_tiles=most,
        padding=(red, green, blue),
    )
    return MediaProcessing(images=ImageProcessing(sizing=sizing))


def _layout(medium: "Medium", context: LayoutContext) -> TokenLayout:
    """Returns the tokens of an image: those of its tiles, then of its overview, and one more."""
    rows, columns = medium.grid[:2]
    return one_run(medium.kind, context.model.encoder_as(PageVisionConfig).num_tokens(rows * columns))


def _embedding_grid(config: ModelConfig, _kind: MediaKind, num_rows: int) -> tuple[int, ...]:
    """Returns one of the possible grids. Several arrangements of tiles have as many tokens, in one run alike."""
    encoder = config.encoder_as(PageVisionConfig)
    others, of_tile = encoder.num_tokens(0), encoder.tile_side**2
    count, rest = divmod(num_rows - others, of_tile)
    if count < 0 or rest:
        raise ValueError(f"expected {others} tokens of an overview, and {of_tile} more for each tile")
    return (1, count) if count else (0, 0)


def _largest_medium(config: ModelConfig, num_tokens: int) -> LargestMedium:
    """Returns an image of about `num_tokens` tokens, whose tiles lie side by side."""
    encoder = config.encoder_as(PageVisionConfig)
    columns = max(1, (num_tokens - encoder.num_tokens(0)) // encoder.tile_side**2)
    side, tile = map(encoder.pixels, (encoder.overview_side, encoder.tile_side))
    most_pixels = max(side**2, min(columns, encoder.max_batch_tiles) * tile**2)
    # Attention to all patches has the wider hidden states: a number for each row and column of patches in each head.
    head_width = encoder.sam.width // encoder.sam.num_heads + 2 * side // encoder.sam.patch_size
    return LargestMedium(
        kind=MediaKind.IMAGE,
        grid=(1, columns),
        num_bytes=3 * (columns * tile**2 + side**2),
        num_positions=most_pixels // encoder.sam.patch_size**2,
        width=encoder.sam.width,
        intermediate_size=max(encoder.sam.intermediate_size, 3 * encoder.sam.num_heads * head_width),
    )


_BOXES = re.compile(r"(?:<\|ref\|>(?P<label>[^<]*)<\|/ref\|>\s*)?<\|det\|>(?P<box>[^<]*)<\|/det\|>")
DEEPSEEK_OCR2 = FamilySpec(
    read_config=_read_config,
    module="deepseek.deepseek_ocr2",
    fallback_template=_TEMPLATE,
    asking_tokens=frozenset({"<|grounding|>", "<|ref|>", "<|/ref|>"}),  # in the prompts of the model card
    read_media=_read_media,
    layout=_layout,
    largest_medium=_largest_medium,
    embedding_grid=_embedding_grid,
    grounding=(TextForm(pattern=_BOXES, scale=999, of_source=True),),
)
"""Boxes are lists of [x1, y1, x2, y2] from 0 to 999 of the image as it was sent (the published code)."""
DEEPSEEK_OCR2_PUBLISHED = replace(DEEPSEEK_OCR2, read_config=_read_published_config)
