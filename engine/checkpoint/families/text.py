"""Decoders by their `model_type`, and the models that read text alone: Qwen2, Qwen2.5, Qwen3 (dense and with experts),
Llama, SmolLM2, Mistral and Phi-3."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from glimpse.engine.checkpoint.families.reading.fields import experts_of, require, rope_of, text_config
from glimpse.engine.checkpoint.families.spec import FamilyConfig, FamilySpec
from glimpse.engine.checkpoint.model_config.decoder import TextConfig
from glimpse.engine.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decoder:
    """What distinguishes a decoder."""

    qkv_bias: bool = False
    """See `TextConfig`."""
    head_norms: bool = False
    """See `TextConfig`."""
    partial_rotary: bool = False
    """Some of its checkpoints rotate only a part of each head, as Phi-4-mini does."""
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Values of fields that a document may leave out."""
    nested_defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Values of further fields that a `text_config` in another document may leave out: transformers omits there what is
    the default. Empty: not supported there."""


_SIZES: Mapping[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "eos_token_id": 2,
}
_QWEN_SIZES = {
    **_SIZES,
    "eos_token_id": None,
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "max_position_embeddings": 32768,
}
_MISTRAL_SIZES = {**_SIZES, "intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072}
_MINISTRAL3_SIZES = {
    **_MISTRAL_SIZES,
    "vocab_size": 131072,
    "num_hidden_layers": 34,
    "head_dim": 128,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 262144,
}
_DECODERS = {
    "llama": _Decoder(nested_defaults=_SIZES),
    "qwen2": _Decoder(qkv_bias=True, nested_defaults=_QWEN_SIZES),
    "qwen3": _Decoder(head_norms=True, nested_defaults={**_QWEN_SIZES, "head_dim": 128}),
    "qwen3_moe": _Decoder(head_norms=True),
    # Their `sliding_window` counts without a field that turns it on. Mistral's default is that of transformers.
    "mistral": _Decoder(defaults={"use_sliding_window": True, "sliding_window": 4096}, nested_defaults=_MISTRAL_SIZES),
    "ministral3": _Decoder(defaults={"use_sliding_window": True}, nested_defaults=_MINISTRAL3_SIZES),
    "phi3": _Decoder(partial_rotary=True, defaults={"use_sliding_window": True}),
}


def nested_decoder(config: Mapping[str, Any]) -> TextConfig:
    """Reads the decoder of a model whose `text_config` names its kind in `model_type`.

    Raises:
        KeyError: a field is missing.
        CheckpointError: a value is not supported.
    """
    decoder, text = _nested(config)
    # Some published documents tie the weights in one of the two places only.
    tied = bool(config.get("tie_word_embeddings") or text.get("tie_word_embeddings"))
    return _read(decoder, text, tied=tied)


def nested_eos_token_ids(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns the end tokens by default of the decoder of `nested_decoder`. Raises as it does."""
    decoder, _ = _nested(config)
    eos = decoder.nested_defaults["eos_token_id"]
    return () if eos is None else (eos,)


def _nested(config: Mapping[str, Any]) -> tuple[_Decoder, Mapping[str, Any]]:
    """Returns the kind of decoder, and its fields with the defaults of those that the document leaves out."""
    text = config["text_config"]
    kind = text["model_type"]
    supported = {name: decoder for name, decoder in _DECODERS.items() if decoder.nested_defaults}
    if kind not in supported:
        raise CheckpointError(
            f"config.json: 'text_config.model_type': expected one of {', '.join(supported)}; got {kind!r}"
        )
    decoder = supported[kind]
    return decoder, {**decoder.nested_defaults, **text}


def _read(decoder: _Decoder, text: Mapping[str, Any], *, tied: bool) -> TextConfig:
    require("hidden_act", text.get("hidden_act", "silu"), "silu")
    for name in ("mlp_bias", "attention_bias"):
        if text.get(name):
            raise CheckpointError(f"config.json: '{name}': expected false, got true")
    if not text.get("is_causal", True):
        raise CheckpointError("config.json: 'is_causal': expected true, got false: attention is causal here")
    rope = rope_of(text)
    return text_config(
        {"rope_theta": 10_000.0, **decoder.defaults, **text},
        {"tie_word_embeddings": tied},
        rope,
        qkv_bias=decoder.qkv_bias,
        head_norms=decoder.head_norms,
        experts=experts_of(text, renormalized=bool(text.get("norm_topk_prob", False))),
        partial_rotary_factor=_partial_rotary_factor(decoder, text, rope),
    )


def _partial_rotary_factor(decoder: _Decoder, text: Mapping[str, Any], rope: Mapping[str, Any]) -> float:
    # transformers 5 has it among the rotary fields.
    factor = rope.get("partial_rotary_factor", text.get("partial_rotary_factor", 1.0))
    if factor != 1.0 and not (decoder.partial_rotary and 0 < factor < 1):
        raise CheckpointError(f"config.json: 'partial_rotary_factor': expected 1.0, got {factor}")
    return factor


def _read_config(config: Mapping[str, Any], *, decoder: _Decoder) -> FamilyConfig:
    return FamilyConfig(text=_read(decoder, config, tied=bool(config.get("tie_word_embeddings"))), placeholder_ids={})


def _spec(kind: str) -> FamilySpec:
    return FamilySpec(read_config=partial(_read_config, decoder=_DECODERS[kind]), module="text")


QWEN2, QWEN3, QWEN3_MOE, LLAMA, MISTRAL, PHI3 = map(_spec, ("qwen2", "qwen3", "qwen3_moe", "llama", "mistral", "phi3"))
