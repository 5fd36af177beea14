"""Gemma 4: the decoder alone, with images and videos, and with audio too."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from glimpse.engine.checkpoint.families.gemma.gemma3 import END_TOKEN, layer_kinds
from glimpse.engine.checkpoint.families.gemma.gemma4_media import (
    NUM_MEL_BINS,
    embedding_grid,
    largest_medium,
    layout,
    read_media,
)
from glimpse.engine.checkpoint.families.reading.fields import require, text_config
from glimpse.engine.checkpoint.families.spec import FamilyConfig, FamilySpec
from glimpse.engine.checkpoint.model_config.decoder import (
    ExpertsConfig,
    KVHeads,
    LayerEmbeddings,
    LayerKind,
    SlidingAttention,
    TextConfig,
)
from glimpse.engine.checkpoint.model_config.encoders import (
    Gemma4AudioConfig,
    Gemma4VisionConfig,
    PixelsConfig,
    WaveConfig,
)
from glimpse.engine.errors import CheckpointError
from glimpse.media.kind import MediaKind
from glimpse.media.processing.sizing.patches.patch_budget import BUDGETS

_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 262_144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "global_head_dim": 512,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 131_072,
    "sliding_window": 512,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size_per_layer_input": 256,
    "vocab_size_per_layer_input": 262_144,
    "pad_token_id": 0,
    "num_kv_shared_layers": 0,
}
"""Values of fields that documents leave out, as in transformers' models/gemma4/configuration_gemma4.py."""

_ROPES: Mapping[str, Mapping[str, Any]] = {
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
}
_END_TOKENS = ("<|tool_response>",)
"""Where the results of calls follow."""


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
    kinds = _layer_kinds(text)
    ropes = {**_ROPES, **(text.get("rope_parameters") or {})}
    sliding_heads = KVHeads(text["num_key_value_heads"], text["head_dim"])
    full_heads = _full_heads(text, kinds)
    width = text["hidden_size_per_layer_input"]
    return text_config(
        {**text, "num_key_value_heads": full_heads.number, "head_dim": full_heads.dim},
        {"tie_word_embeddings": tied},
        ropes["full_attention"],
        qkv_bias=False,
        head_norms=True,
        activation="gelu_tanh",
        embedding_factor=text["hidden_size"] ** 0.5,
        score_factor=1.0,
        value_norms=True,
        keys_are_values=bool(text.get("attention_k_eq_v")),
        output_norms=True,
        layer_kinds=kinds,
        sliding=_sliding(text, ropes["sliding_attention"], sliding_heads) if "sliding" in kinds else None,
        num_sharing_layers=text["num_kv_shared_layers"],
        sharing_mlp_factor=2 if text.get("use_double_wide_mlp") else 1,
        layer_embeddings=LayerEmbeddings(
            vocab_size=text["vocab_size_per_layer_input"], width=width, media_token_id=text["pad_token_id"] or 0
        )
        if width
        else None,
        layer_factors=True,
        logit_cap=text.get("final_logit_softcapping"),
        experts=_experts(text) if text.get("enable_moe_block") else None,
    )


def _check(text: Mapping[str, Any]) -> None:
    """Refuses what other models of the same architecture have."""
    require("hidden_activation", text["hidden_activation"], "gelu_pytorch_tanh")
    if text.get("attention_bias"):
        raise CheckpointError("config.json: 'attention_bias': expected false, got true")
    if text.get("use_bidirectional_attention") not in (None, "vision"):
        raise CheckpointError(
            "config.json: 'use_bidirectional_attention': expected null or 'vision', got"
            f" {text['use_bidirectional_attention']!r}"
        )


def _layer_kinds(text: Mapping[str, Any]) -> list[LayerKind]:
    kinds: list[LayerKind] = [*layer_kinds(text)[:-1], "full"]  # the last one is, as in transformers
    first = len(kinds) - text["num_kv_shared_layers"]
    if missing := {*kinds} - {*kinds[:first]}:
        raise CheckpointError(
            f"config.json: 'num_kv_shared_layers': expected a layer of {missing.pop()}_attention before those, got"
            f" {text['num_kv_shared_layers']} of {len(kinds)} layers"
        )
    return kinds


def _full_heads(text: Mapping[str, Any], kinds: list[LayerKind]) -> KVHeads:
    """Returns the heads of layers that attend to all tokens: `per_layer_config` of transformers 5, or the published
    fields."""
    heads = KVHeads(text["num_key_value_heads"], text["global_head_dim"])
    if text.get("attention_k_eq_v") and text.get("num_global_key_value_heads"):
        heads = heads._replace(number=text["num_global_key_value_heads"])
    layers: Mapping[str, Mapping[str, Any]] | None = text.get("per_layer_config")
    if layers is None:
        return heads
    found = {int(index): (each.get("num_key_value_heads"), each.get("head_dim")) for index, each in layers.items()}
    if {*found} != {index for index, kind in enumerate(kinds) if kind == "full"} or len({*found.values()}) > 1:
        raise CheckpointError(
            "config.json: 'per_layer_config': expected the same heads for each full_attention layer, got"
            f" {dict(sorted(found.items()))}"
        )
    number, dim = next(iter(found.values()))
    return KVHeads(number or text["num_key_value_heads"], dim or text["head_dim"])


def _sliding(text: Mapping[str, Any], rope: Mapping[str, Any], heads: KVHeads) -> SlidingAttention:
    require("rope_parameters.sliding_attention.rope_type", rope.get("rope_type", "default"), "default")
    return SlidingAttention(window=text["sliding_window"], rope_theta=float(rope["rope_theta"]), kv_heads=heads)


def _experts(text: Mapping[str, Any]) -> ExpertsConfig:
    return ExpertsConfig(
        num_experts=text["num_experts"],
        num_chosen=text["top_k_experts"],
        intermediate_size=text["moe_intermediate_size"],
        renormalized=True,
        layers=frozenset(range(text["num_hidden_layers"])),
        beside_mlp=True,
    )


def _read_text_config(config: Mapping[str, Any]) -> FamilyConfig:
    tied = bool(config.get("tie_word_embeddings", True))
    return FamilyConfig(
        text=read_decoder(config, tied=tied), placeholder_ids={}, eos_token_ids=(END_TOKEN,), end_tokens=_END_TOKENS
    )


_VISION_DEFAULTS: Mapping[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 16,
    "num_attention_heads": 12,
    "num_key_value_heads": None,
    "head_dim": 64,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "pooling_kernel_size": 3,
    "patch_size": 16,
    "position_embedding_size": 10_240,
    "use_clipped_linears": False,
    "standardize": False,
    "attention_bias": False,
}
_TOKEN_IDS: Mapping[str, int] = {
    "boi": 255_999,
    "eoi": 258_882,
    "image": 258_880,
    "boa": 256_000,
    "eoa": 258_883,
    "audio": 258_881,
    "video": 258_884,
}


_AUDIO_DEFAULTS: Mapping[str, Any] = {
    "hidden_size": 1024,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "hidden_act": "silu",
    "subsampling_conv_channels": (128, 32),
    "conv_kernel_size": 5,
    "residual_weight": 0.5,
    "attention_chunk_size": 12,
    "attention_context_left": 13,
    "attention_context_right": 0,
    "attention_logit_cap": 50.0,
    "use_clipped_linears": True,
    "rms_norm_eps": 1e-6,
    "gradient_clipping": 1e10,
    "output_proj_dims": 1536,
}


def _read_config(config: Mapping[str, Any]) -> FamilyConfig:
    ids, audio = _token_ids(config), config.get("audio_config")
    encoder = replace(
        _read_vision(config["vision_config"], start=ids["boi"], end=ids["eoi"]),
        audio=None if audio is None else _read_audio(audio, start=ids["boa"], end=ids["eoa"]),
    )
    return _with_media(config, config["text_config"], encoder, ids)


def _read_unified_config(config: Mapping[str, Any]) -> FamilyConfig:
    """Reads the configuration of 12B, without encoders."""
    text = {**_UNIFIED_TEXT, **config["text_config"]}
    ids, audio = _token_ids(config), config.get("audio_config")
    vision = {**_UNIFIED_VISION, **config["vision_config"]}
    require("vision_config.output_proj_dims", vision["output_proj_dims"], vision["mm_embed_dim"])
    encoder = PixelsConfig(
        width=vision["mm_embed_dim"],
        patch_size=vision["patch_size"],
        pool_size=vision["pooling_kernel_size"],
        num_positions=vision["mm_posemb_size"],
        norm_eps=vision["rms_norm_eps"],
        start_token_id=ids["boi"],
        end_token_id=ids["eoi"],
        audio=None
        if audio is None
        else WaveConfig(
            width=audio.get("audio_embed_dim", 640),
            norm_eps=audio.get("rms_norm_eps", 1e-6),
            start_token_id=ids["boa"],
            end_token_id=ids["eoa"],
        ),
    )
    return _with_media(config, text, encoder, ids)


_UNIFIED_TEXT: Mapping[str, Any] = {
    "hidden_size_per_layer_input": 0,
    "max_position_embeddings": 262_144,
    "sliding_window": 1024,
    "use_bidirectional_attention": "vision",
}
_UNIFIED_VISION: Mapping[str, Any] = {
    "patch_size": 16,
    "pooling_kernel_size": 3,
    "mm_embed_dim": 3840,
    "mm_posemb_size": 1120,
    "rms_norm_eps": 1e-6,
    "output_proj_dims": 3840,
}
"""Values of fields that documents of 12B leave out, as in models/gemma4_unified/configuration_gemma4_unified.py."""


def _token_ids(config: Mapping[str, Any]) -> Mapping[str, int]:
    return {
        name: config.get(f"{name}_token_id") or config.get(f"{name}_token_index") or default
        for name, default in _TOKEN_IDS.items()
    }


def _with_media(
    config: Mapping[str, Any],
    text: Mapping[str, Any],
    encoder: Gemma4VisionConfig | PixelsConfig,
    ids: Mapping[str, int],
) -> FamilyConfig:
    decoder = read_decoder(text, tied=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", True))))
    if text.get("use_bidirectional_attention") == "vision":
        decoder = replace(decoder, bidirectional_run=BUDGETS[-1], bidirectional_full=False)
    return FamilyConfig(
        text=decoder,
        encoder=encoder,
        placeholder_ids={
            kind: ids[kind] for kind in ("image", "video", *(() if encoder.audio is None else ("audio",)))
        },
        placeholder_texts={"video": "<|video|>"},  # tokenizers may not list it: transformers adds it too
        eos_token_ids=(END_TOKEN,),
        end_tokens=_END_TOKENS,
    )


def _read_vision(vision: Mapping[str, Any], *, start: int, end: int) -> Gemma4VisionConfig:
    vision = {**_VISION_DEFAULTS, **vision}
    heads = vision["num_attention_heads"]
    require("vision_config.num_key_value_heads", vision["num_key_value_heads"] or heads, heads)
    require("vision_config.hidden_activation", vision["hidden_activation"], "gelu_pytorch_tanh")
    require("vision_config.attention_bias", bool(vision["attention_bias"]), False)
    rope: Mapping[str, Any] = vision.get("rope_parameters") or {}
    if vision["head_dim"] % 4:
        raise CheckpointError(
            f"config.json: 'vision_config.head_dim': expected a multiple of 4, got {vision['head_dim']}"
        )
    return Gemma4VisionConfig(
        width=vision["hidden_size"],
        intermediate_size=vision["intermediate_size"],
        num_layers=vision["num_hidden_layers"],
        num_heads=heads,
        head_dim=vision["head_dim"],
        patch_size=vision["patch_size"],
        pool_size=vision["pooling_kernel_size"],
        num_positions=vision["position_embedding_size"],
        norm_eps=vision["rms_norm_eps"],
        rope_theta=float(rope.get("rope_theta", 100.0)),
        clipped=bool(vision["use_clipped_linears"]),
        standardizes=bool(vision["standardize"]),
        start_token_id=start,
        end_token_id=end,
    )


def _read_audio(audio: Mapping[str, Any], *, start: int, end: int) -> Gemma4AudioConfig:
    audio = {**_AUDIO_DEFAULTS, **audio}
    expected = {
        "hidden_act": "silu",
        "attention_context_right": 0,
        "attention_chunk_size": audio["attention_context_left"] - 1,
        "gradient_clipping": 1e10,
    }
    for name, value in expected.items():
        require(f"audio_config.{name}", audio[name], value)
    first, second = audio["subsampling_conv_channels"]
    require("audio_config.subsampling_conv_channels[0]", first, NUM_MEL_BINS)  # as the reference expects
    return Gemma4AudioConfig(
        num_mel_bins=NUM_MEL_BINS,
        width=audio["hidden_size"],
        output_width=audio["output_proj_dims"],
        num_layers=audio["num_hidden_layers"],
        num_heads=audio["num_attention_heads"],
        channels=(first, second),
        kernel_size=audio["conv_kernel_size"],
        window=audio["attention_context_left"] - 1,
        logit_cap=audio["attention_logit_cap"],
        residual_factor=audio["residual_weight"],
        norm_eps=audio["rms_norm_eps"],
        clipped=bool(audio["use_clipped_linears"]),
        start_token_id=start,
        end_token_id=end,
    )


GEMMA4_TEXT = FamilySpec(read_config=_read_text_config, module="gemma.gemma4")
GEMMA4 = FamilySpec(
    read_config=_read_config,
    module="gemma.gemma4",
    slots_in_lines=False,
    read_media=read_media,
    layout=layout,
    largest_medium=largest_medium,
    embedding_grid=embedding_grid,
    embedding_kinds=frozenset({MediaKind.IMAGE, MediaKind.AUDIO}),  # those of videos have no times
)
GEMMA4_UNIFIED = replace(GEMMA4, read_config=_read_unified_config)
