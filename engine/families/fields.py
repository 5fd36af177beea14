"""Fields of `config.json` that many families share."""

from collections.abc import Mapping
from typing import Any

from glimpse.engine.errors import CheckpointError
from glimpse.engine.model_config import LinearScaling, Llama3Scaling, RopeScaling, TextConfig


def require(field: str, value: object, supported: str) -> None:
    """Raises CheckpointError if a field has another than the only supported value."""
    if value != supported:
        raise CheckpointError(f"config.json: '{field}': expected {supported!r}, got {value!r}")


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
) -> TextConfig:
    """Reads a decoder.

    Args:
        text: the decoder's fields.
        config: the whole document, in which families repeat some of them.
        rope: the rotary fields.
        mrope_section: of M-RoPE; None if positions have one axis.
        qkv_bias: as in `TextConfig`.
        head_norms: as in `TextConfig`.
    """
    head_dim = text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
    window = _sliding_window(text)
    length = text["max_position_embeddings"]
    return TextConfig(
        vocab_size=text["vocab_size"],
        hidden_size=text["hidden_size"],
        intermediate_size=text["intermediate_size"],
        num_layers=text["num_hidden_layers"],
        num_heads=text["num_attention_heads"],
        num_kv_heads=text.get("num_key_value_heads") or text["num_attention_heads"],
        head_dim=head_dim,
        rms_norm_eps=text["rms_norm_eps"],
        rope_theta=float(rope["rope_theta"] if "rope_theta" in rope else text["rope_theta"]),
        mrope_section=mrope_section or (head_dim // 2, 0, 0),
        # Within its sliding window, attention is full attention.
        max_position_embeddings=length if window is None else min(length, window),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
        qkv_bias=qkv_bias,
        head_norms=head_norms,
        rope_scaling=None if mrope_section else _rope_scaling(rope),
    )


def _sliding_window(text: Mapping[str, Any]) -> int | None:
    """Returns the most keys that a layer attends to; None if all layers attend to all keys."""
    kinds = text.get("layer_types")
    if not text.get("use_sliding_window", False) or (kinds and "sliding_attention" not in kinds):
        return None
    return text.get("sliding_window")


def _rope_scaling(rope: Mapping[str, Any]) -> RopeScaling | None:
    match rope.get("rope_type", rope.get("type", "default")):
        case "default":
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
        case other:
            raise CheckpointError(
                f"config.json: 'rope_scaling.rope_type': expected 'default', 'linear' or 'llama3', got {other!r}"
            )
