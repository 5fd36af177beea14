"""Fields of `config.json` that many families share."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from glimpse.engine.checkpoint.model_config.decoder import (
    ExpertsConfig,
    LayerKind,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    ProportionalScaling,
    RopeScaling,
    TextConfig,
    YarnScaling,
)
from glimpse.engine.errors import CheckpointError


def require(field: str, value: object, supported: object) -> None:
    """Raises CheckpointError if a field has another than the only supported value."""
    if value != supported:
        raise CheckpointError(f"config.json: '{field}': expected {supported!r}, got {value!r}")


def require_fields(document: Mapping[str, Any], part: str, **supported: object) -> None:
    """Raises CheckpointError if a field has another than its only supported value, which is that of documents without
    it. `part`: what stands before the fields' names in errors."""
    for name, value in supported.items():
        require(f"{part}{name}", document.get(name, value), value)


def rope_of(text: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the rotary fields: `rope_parameters` of transformers 5, or the older `rope_scaling`; {} without them."""
    return text.get("rope_parameters") or text.get("rope_scaling") or {}


def text_config(
    text: Mapping[str, Any],
    config: Mapping[str, Any],
    rope: Mapping[str, Any],
    *,
    mrope_section: tuple[int, int, int] | None = None,
    qkv_bias: bool = True,
    head_norms: bool = False,
    mrope_interleaved: bool = False,
    num_deepstack_layers: int = 0,
    layer_kinds: Sequence[LayerKind] = (),
    **traits: Any,
) -> TextConfig:
    """Reads a decoder.

    Args:
        text: the decoder's fields.
        config: the whole document, in which families repeat some of them.
        rope: the rotary fields.
        mrope_section: of M-RoPE; None if positions have one axis.
        qkv_bias: as in `TextConfig`.
        head_norms: as in `TextConfig`.
        mrope_interleaved: as in `TextConfig`.
        num_deepstack_layers: as in `TextConfig`.
        layer_kinds: as in `TextConfig`; all are "full" if there are none.
        traits: further fields of `TextConfig`.
    """
    head_dim = text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
    # Within its sliding window, attention is full attention. Ministral 3 scales no query before the second window.
    unscaled = rope["original_max_position_embeddings"] if rope.get("llama_4_scaling_beta") else None
    lengths = (text["max_position_embeddings"], _sliding_window(text), unscaled)
    context = min(length for length in lengths if length is not None)
    decoder = TextConfig(
        vocab_size=text["vocab_size"],
        hidden_size=text["hidden_size"],
        intermediate_size=text["intermediate_size"],
        layer_kinds=tuple(layer_kinds) or ("full",) * text["num_hidden_layers"],
        num_heads=text["num_attention_heads"],
        num_kv_heads=text.get("num_key_value_heads") or text["num_attention_heads"],
        head_dim=head_dim,
        rms_norm_eps=text["rms_norm_eps"],
        rope_theta=float(rope["rope_theta"] if "rope_theta" in rope else text["rope_theta"]),
        mrope_section=mrope_section or (head_dim // 2, 0, 0),
        max_position_embeddings=context,
        tie_word_embeddings=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
        qkv_bias=qkv_bias,
        head_norms=head_norms,
        mrope_interleaved=mrope_interleaved,
        num_deepstack_layers=num_deepstack_layers,
        **traits,
    )
    return replace(decoder, rope_scaling=_rope_scaling(rope, text, decoder))


def mrope_section_of(rope: Mapping[str, Any], num_pairs: int) -> tuple[int, int, int]:
    """Reads how many of a head's pairs of dimensions that rotate do so with time, height and width."""
    section = tuple(rope["mrope_section"])
    if len(section) != 3 or sum(section) != num_pairs:
        raise CheckpointError(
            "config.json: 'text_config.rope_parameters.mrope_section': expected three numbers that add up to"
            f" {num_pairs}, half of the dimensions that rotate, got {[*section]}"
        )
    return section


def check_qwen3_decoder(text: Mapping[str, Any], rope: Mapping[str, Any]) -> None:
    """Raises CheckpointError for decoders of Qwen3-VL or Qwen3.5 that would be computed incorrectly."""
    require_fields(text, "text_config.", hidden_act="silu", attention_bias=False)
    require("text_config.rope_scaling.rope_type", rope.get("rope_type", rope.get("type", "default")), "default")
    require("text_config.rope_scaling.mrope_interleaved", rope.get("mrope_interleaved", True), True)


def experts_of(text: Mapping[str, Any], *, renormalized: bool) -> ExpertsConfig | None:
    """Reads the experts of Qwen3's decoders; None if they are dense."""
    num_experts = text.get("num_experts", text.get("num_local_experts"))  # as transformers 5 writes it
    if not num_experts:
        return None
    dense, step = text.get("mlp_only_layers") or (), text.get("decoder_sparse_step", 1)
    layers = (index for index in range(text["num_hidden_layers"]) if (index + 1) % step == 0 and index not in dense)
    return ExpertsConfig(
        num_experts=num_experts,
        num_chosen=text["num_experts_per_tok"],
        intermediate_size=text["moe_intermediate_size"],
        renormalized=renormalized,
        layers=frozenset(layers),
    )


def _sliding_window(text: Mapping[str, Any]) -> int | None:
    """Returns the most keys that a layer attends to; None if all layers attend to all keys."""
    kinds = text.get("layer_types")
    if not text.get("use_sliding_window", False) or (kinds and "sliding_attention" not in kinds):
        return None
    return text.get("sliding_window")


def _rope_scaling(rope: Mapping[str, Any], text: Mapping[str, Any], decoder: TextConfig) -> RopeScaling | None:
    match rope.get("rope_type", rope.get("type", "default")):
        # "dynamic" changes frequencies only beyond max_position_embeddings, which is the longest context here.
        case "default" | "dynamic" | "mrope":
            return None
        case "linear":
            return LinearScaling(factor=rope["factor"])
        case "llama3":
            return Llama3Scaling(
                factor=rope["factor"],
                low_freq_factor=rope["low_freq_factor"],
                high_freq_factor=rope["high_freq_factor"],
                original_context=rope["original_max_position_embeddings"],
            )
        case "longrope" | "su":
            return _long_rope(rope, text, decoder)
        case "yarn":
            return _yarn(rope, text, decoder)
        case "proportional":
            return ProportionalScaling(share=rope.get("partial_rotary_factor", 1.0), factor=rope.get("factor", 1.0))
        case other:
            raise CheckpointError(
                "config.json: 'rope_scaling.rope_type': expected 'default', 'dynamic', 'linear', 'llama3',"
                f" 'proportional', 'longrope' or 'yarn', got {other!r}"
            )


def _long_rope(rope: Mapping[str, Any], text: Mapping[str, Any], decoder: TextConfig) -> LongRopeScaling:
    """Reads LongRoPE's parameters as transformers' `_compute_longrope_parameters` does (modeling_rope_utils.py)."""
    for name in ("short_mscale", "long_mscale"):
        if name in rope:
            raise CheckpointError(f"config.json: 'rope_scaling.{name}': expected no such field, got {rope[name]}")
    original = rope.get("original_max_position_embeddings") or text["original_max_position_embeddings"]
    factor = rope.get("factor") or text["max_position_embeddings"] / original
    default = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return LongRopeScaling(
        short_factors=_factors(rope, "short_factor", decoder),
        long_factors=_factors(rope, "long_factor", decoder),
        original_context=original,
        attention_factor=rope.get("attention_factor") or default,
        max_context=decoder.max_position_embeddings,
    )


def _yarn(rope: Mapping[str, Any], text: Mapping[str, Any], decoder: TextConfig) -> YarnScaling:
    """Reads YaRN's parameters as transformers' `_compute_yarn_parameters` does (modeling_rope_utils.py)."""
    original = rope["original_max_position_embeddings"]
    factor = rope.get("factor") or text["max_position_embeddings"] / original

    def place(turns: float) -> float:  # index of the wavelength that turns so often within the original context
        return decoder.rotary_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(decoder.rope_theta))

    def magnitude(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0

    kept, stretched = place(rope.get("beta_fast") or 32), place(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        kept, stretched = math.floor(kept), math.ceil(stretched)
    kept, stretched = max(kept, 0), min(stretched, decoder.rotary_dim - 1)
    mscale, mscale_all = rope.get("mscale"), rope.get("mscale_all_dim")
    default = magnitude(mscale) / magnitude(mscale_all) if mscale and mscale_all else magnitude(1)
    return YarnScaling(
        factor=factor,
        kept=kept,
        stretched=stretched if stretched != kept else kept + 0.001,
        attention_factor=default if rope.get("attention_factor") is None else rope["attention_factor"],
    )


def _factors(rope: Mapping[str, Any], name: str, decoder: TextConfig) -> tuple[float, ...]:
    """Returns a factor for each pair of dimensions that rotates."""
    expected, factors = decoder.rotary_dim // 2, rope[name]
    if len(factors) != expected:
        raise CheckpointError(f"config.json: 'rope_scaling.{name}': expected {expected} numbers, got {len(factors)}")
    return tuple(map(float, factors))
