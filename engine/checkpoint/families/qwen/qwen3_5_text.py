"""The decoder of Qwen3.5, Qwen3.6 and MiniCPM-V 4.6: three gated delta nets for each layer of attention."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from glimpse.engine.checkpoint.families.reading.fields import (
    check_qwen3_decoder,
    experts_of,
    mrope_section_of,
    require,
    rope_of,
    text_config,
)
from glimpse.engine.checkpoint.families.spec import FamilyConfig, FamilySpec
from glimpse.engine.checkpoint.model_config.decoder import DeltaNetSizes, ExpertsConfig, LayerKind, TextConfig
from glimpse.engine.errors import CheckpointError

_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 248_320,
    "hidden_size": 4096,
    "intermediate_size": 12_288,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32_768,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
"""Values of fields that documents leave out, as in transformers' models/qwen3_5/configuration_qwen3_5.py."""
_EXPERTS_TYPE = "qwen3_5_moe_text"
"""`model_type` of decoders whose layers have experts, one of them shared by all tokens."""
_EXPERTS_DEFAULTS: Mapping[str, Any] = {
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
"""Values that differ there, as in transformers' models/qwen3_5_moe/configuration_qwen3_5_moe.py."""
_ROPE_DEFAULTS: Mapping[str, Any] = {
    "rope_theta": 10_000.0,
    "partial_rotary_factor": 0.25,
    "mrope_section": [11, 11, 10],
}
_INTERVAL = 4
"""Every fourth layer is of attention, unless the document says otherwise."""
_KINDS: Mapping[str, LayerKind] = {"full_attention": "full", "linear_attention": "delta_net"}


def read_decoder(text: Mapping[str, Any], *, tied: bool) -> TextConfig:
    """Reads a decoder with gated delta nets. `tied`: the output head is the embedding table."""
    has_experts = text.get("model_type") == _EXPERTS_TYPE
    text = {**_DEFAULTS, **(_EXPERTS_DEFAULTS if has_experts else {}), **text}
    rope = {**_ROPE_DEFAULTS, **rope_of(text)}
    check_qwen3_decoder(text, rope)
    require("text_config.attn_output_gate", text.get("attn_output_gate", True), True)
    factor = rope["partial_rotary_factor"]
    return text_config(
        text,
        {"tie_word_embeddings": tied},
        rope,
        mrope_section=mrope_section_of(rope, int(text["head_dim"] * factor) // 2),
        mrope_interleaved=True,
        partial_rotary_factor=factor,
        qkv_bias=False,
        head_norms=True,
        zero_centered_norms=True,
        output_gate=True,
        layer_kinds=_layer_kinds(text),
        states=_delta_net(text),
        num_mtp_layers=text.get("mtp_num_hidden_layers") or 0,
        experts=_experts(text) if has_experts else None,
    )


def _experts(text: Mapping[str, Any]) -> ExpertsConfig | None:
    experts, shared_size = experts_of(text, renormalized=True), text["shared_expert_intermediate_size"]
    if experts is None or len(experts.layers) < text["num_hidden_layers"] or not shared_size:
        raise CheckpointError("config.json: 'text_config': expected experts in all layers, one of them shared")
    return replace(experts, shared_size=shared_size)


def _layer_kinds(text: Mapping[str, Any]) -> list[LayerKind]:
    interval = text.get("full_attention_interval", _INTERVAL)
    kinds: list[str] = text.get("layer_types") or [
        "linear_attention" if (index + 1) % interval else "full_attention" for index in range(text["num_hidden_layers"])
    ]
    if unknown := {*kinds} - _KINDS.keys():
        raise CheckpointError(
            f"config.json: 'text_config.layer_types': expected {' or '.join(_KINDS)}, got {min(unknown)!r}"
        )
    if "full_attention" not in kinds:
        raise CheckpointError("config.json: 'text_config.layer_types': expected a 'full_attention' among them")
    return [_KINDS[kind] for kind in kinds]


def _delta_net(text: Mapping[str, Any]) -> DeltaNetSizes:
    sizes = DeltaNetSizes(
        num_key_heads=text["linear_num_key_heads"],
        num_value_heads=text["linear_num_value_heads"],
        key_head_dim=text["linear_key_head_dim"],
        value_head_dim=text["linear_value_head_dim"],
        conv_size=text["linear_conv_kernel_dim"],
    )
    if sizes.num_value_heads % sizes.num_key_heads:
        raise CheckpointError(
            f"config.json: 'text_config.linear_num_value_heads': expected a multiple of the {sizes.num_key_heads} heads"
            f" of keys, got {sizes.num_value_heads}"
        )
    return sizes


def _read_text_config(config: Mapping[str, Any]) -> FamilyConfig:
    tied = bool(config.get("tie_word_embeddings", False))
    return FamilyConfig(text=read_decoder(config, tied=tied), placeholder_ids={})


QWEN3_5_TEXT = FamilySpec(read_config=_read_text_config, module="text")
