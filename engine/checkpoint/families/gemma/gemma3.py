"""Gemma 3: the decoder alone, and with images."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL.Image import Resampling

from glimpse.engine.checkpoint.families.grounding import LOCATION_TOKENS, JsonForm
from glimpse.engine.checkpoint.families.reading.fields import require, text_config
from glimpse.engine.checkpoint.families.reading.preprocessor import check_square
from glimpse.engine.checkpoint.families.reading.rows import only_grid
from glimpse.engine.checkpoint.families.reading.vit import vit_config
from glimpse.engine.checkpoint.families.spec import FamilyConfig, FamilySpec, LargestMedium
from glimpse.engine.checkpoint.families.token_layout import LayoutContext, TokenLayout
from glimpse.engine.checkpoint.model_config.decoder import LayerKind, SlidingAttention, TextConfig
from glimpse.engine.checkpoint.model_config.encoders import Gemma3VisionConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.errors import CheckpointError
from glimpse.media.kind import MediaKind
from glimpse.media.processing.image import ImageProcessing
from glimpse.media.processing.media_processing import MediaProcessing
from glimpse.media.processing.preprocessor import PREPROCESSOR, check_processor, read_image_processor
from glimpse.media.processing.sizing.fixed_size import FixedSize

if TYPE_CHECKING:
    from glimpse.media.medium import Medium

_IMAGE = "<start_of_image>"
"""What chat templates render for an image."""

_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 131_072,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "hidden_activation": "gelu_pytorch_tanh",
}
"""Values of fields that documents leave out, as in transformers' models/gemma3/configuration_gemma3.py."""

_GLOBAL_THETA = 1_000_000.0
_LOCAL_THETA = 10_000.0
_PATTERN = 6
"""Every sixth layer attends to all tokens, unless the document says otherwise."""

END_TOKEN = 1
"""`<eos>`, for checkpoints whose files name no end token."""


def read_decoder(text: Mapping[str, Any], *, tied: bool) -> TextConfig:
    """Reads the decoder's fields.

    Args:
        text: the fields, as published or as transformers 5 writes them.
        tied: whether the output head has the weights of the embedding.

    Raises:
        CheckpointError: a value is not supported.
    """
    text = {**_DEFAULTS, **text}
    _check(text)
    ropes = _ropes(text)
    return text_config(
        text,
        {"tie_word_embeddings": tied},
        ropes["full_attention"],
        qkv_bias=False,
        head_norms=True,
        activation="gelu_tanh",
        embedding_factor=text["hidden_size"] ** 0.5,
        score_factor=text["query_pre_attn_scalar"] ** -0.5,
        output_norms=True,
        zero_centered_norms=True,
        layer_kinds=(kinds := layer_kinds(text)),
        sliding=_sliding(text, ropes["sliding_attention"]) if "sliding" in kinds else None,
    )


def _check(text: Mapping[str, Any]) -> None:
    """Refuses what other models of the same architecture have."""
    require("hidden_activation", text["hidden_activation"], "gelu_pytorch_tanh")
    for name in ("attention_bias", "use_bidirectional_attention"):
        if text.get(name):
            raise CheckpointError(f"config.json: '{name}': expected false, got true")
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        require(name, text.get(name), None)


def _ropes(text: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Returns the rotary fields of each kind of layers: `rope_parameters` of transformers 5, or the older fields."""
    ropes: Mapping[str, Any] = text.get("rope_parameters") or {}
    older = {
        "full_attention": {"rope_theta": text.get("rope_theta", _GLOBAL_THETA), **(text.get("rope_scaling") or {})},
        "sliding_attention": {"rope_theta": text.get("rope_local_base_freq", _LOCAL_THETA)},
    }
    return {kind: {**older[kind], **(ropes.get(kind) or {})} for kind in older}


def layer_kinds(text: Mapping[str, Any]) -> list[LayerKind]:
    """Returns the kinds of layers: `layer_types` of transformers 5, or the older pattern."""
    pattern = text.get("sliding_window_pattern") or _PATTERN
    kinds: list[str] = text.get("layer_types") or [
        "sliding_attention" if (index + 1) % pattern else "full_attention" for index in range(text["num_hidden_layers"])
    ]
    return ["sliding" if kind == "sliding_attention" else "full" for kind in kinds]


def _sliding(text: Mapping[str, Any], rope: Mapping[str, Any]) -> SlidingAttention:
    require("rope_parameters.sliding_attention.rope_type", rope.get("rope_type", "default"), "default")
    return SlidingAttention(window=text["sliding_window"], rope_theta=float(rope["rope_theta"]))


def _read_text_config(config: Mapping[str, Any]) -> FamilyConfig:
    tied = bool(config.get("tie_word_embeddings", True))
    return FamilyConfig(text=read_decoder(config, tied=tied), placeholder_ids={}, eos_token_ids=(END_TOKEN,))


def _read_config(config: Mapping[str, Any]) -> FamilyConfig:
    text = config["text_config"]
    require("text_config.model_type", text.get("model_type", "gemma3_text"), "gemma3_text")
    tied = bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", True)))
    encoder = _encoder(config)
    return FamilyConfig(
        text=replace(read_decoder(text, tied=tied), bidirectional_run=encoder.num_tokens),
        encoder=encoder,
        placeholder_ids={"image": _token_id(config, "image", 262_144)},
        placeholder_texts={"image": _IMAGE},
        eos_token_ids=(END_TOKEN,),
    )


def _encoder(config: Mapping[str, Any]) -> Gemma3VisionConfig:
    vit = vit_config(config["vision_config"])
    num_tokens = config.get("mm_tokens_per_image", 256)
    side = math.isqrt(num_tokens)
    if side**2 != num_tokens or vit.side % side:
        raise CheckpointError(
            "config.json: 'mm_tokens_per_image': expected the square of a divisor of the encoder's"
            f" {vit.side} patches, got {num_tokens}"
        )
    return Gemma3VisionConfig(
        vit=vit,
        side=side,
        start_token_id=_token_id(config, "boi", 255_999),
        end_token_id=_token_id(config, "eoi", 256_000),
    )


def _token_id(config: Mapping[str, Any], name: str, default: int) -> int:
    """Returns a token id; transformers renamed the fields."""
    return config.get(f"{name}_token_id", config.get(f"{name}_token_index", default))


def _read_media(path: Path, config: ModelConfig) -> MediaProcessing:
    """Reads the processing of images, which are stretched to the encoder's size."""
    processor = read_image_processor(path)
    check_processor(processor, resampling=Resampling.BILINEAR)
    if processor.get("do_pan_and_scan"):
        raise ValueError(f"{PREPROCESSOR}: 'do_pan_and_scan': expected false, got true")
    side = config.encoder_as(Gemma3VisionConfig).vit.image_size
    check_square(processor, "size", side)
    return MediaProcessing(images=ImageProcessing(sizing=FixedSize(side=side), resampling=Resampling.BILINEAR))


def _layout(medium: "Medium", context: LayoutContext) -> TokenLayout:
    """Returns the tokens of an image: as in transformers' processor, with an empty line before and after them."""
    encoder = context.model.encoder_as(Gemma3VisionConfig)
    return TokenLayout(
        kind=medium.kind,
        leading="\n\n",
        pieces=((encoder.start_token_id,), encoder.num_tokens, (encoder.end_token_id,)),
        trailing="\n\n",
    )


def _embedding_grid(config: ModelConfig, _kind: MediaKind, num_rows: int) -> tuple[int, ...]:
    return only_grid(num_rows, config.encoder_as(Gemma3VisionConfig).num_tokens)


def _largest_medium(config: ModelConfig, num_tokens: int) -> LargestMedium:
    encoder = config.encoder_as(Gemma3VisionConfig)
    return LargestMedium.of_images(encoder.vit, encoder.num_tokens, num_tokens)


GEMMA3_TEXT = FamilySpec(read_config=_read_text_config, module="gemma.gemma3")
_GROUNDING = (
    JsonForm(box="box_2d", point="point", scale=1000, y_first=True),
    LOCATION_TOKENS,
)
"""Google documents the first for Gemini alone, and says that Gemma 3 probably follows it (google/gemma-3-4b-it,
discussion 38). Checkpoints tuned for detection write the second."""
GEMMA3 = FamilySpec(
    read_config=_read_config,
    module="gemma.gemma3",
    slots_in_lines=False,
    read_media=_read_media,
    layout=_layout,
    largest_medium=_largest_medium,
    embedding_grid=_embedding_grid,
    grounding=_GROUNDING,
)
