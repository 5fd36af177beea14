"""The metadata of a GGUF file as the `config.json` and `generation_config.json` of the same model, so that families
read both alike. Keys are those of llama.cpp (gguf-py/gguf/constants.py)."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from glimpse.engine.checkpoint.gguf.architectures import (
    LONG_ROPE_FACTORS,
    MAX_LAYERS,
    ROPE_FACTORS,
    GgufArchitecture,
    architecture_of,
)
from glimpse.engine.checkpoint.gguf.header import Gguf
from glimpse.engine.checkpoint.gguf.keys import Keys
from glimpse.engine.checkpoint.gguf.names import packed_types, tiled_heads
from glimpse.engine.checkpoint.gguf.tokenizer import CONTROL
from glimpse.engine.errors import CheckpointError

_YARN = {
    "beta_fast": "rope.scaling.yarn_beta_fast",
    "beta_slow": "rope.scaling.yarn_beta_slow",
    # Of Mistral's, whose `mscale` is always 1.
    "mscale": "rope.scaling.yarn_log_multiplier",
    "mscale_all_dim": "rope.scaling.yarn_log_multiplier",
    "llama_4_scaling_beta": "attention.temperature_scale",
}
"""Keys of YaRN's further fields."""
_END_TOKENS = frozenset(
    (
        "<|im_end|>",
        "<|endoftext|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end_of_text|>",
        "<|end|>",
        "</s>",
        "<end_of_turn>",
        "<|observation|>",
    )
)
"""Special tokens that end an answer, whether or not the metadata names them."""


_SAMPLING: Mapping[str, str] = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
"""Fields of `generation_config.json` by those of `general.sampling`."""
_NO_POOLING = 0
_POOLING: Mapping[int, str] = {1: "pooling_mode_mean_tokens", 3: "pooling_mode_lasttoken"}
"""Flags of sentence-transformers by `pooling_type` (`llama_pooling_type` in llama.h)."""


def read_config(gguf: Gguf) -> dict[str, Any]:
    """Returns what `config.json` says of the model.

    Raises:
        CheckpointError: the architecture is not served, or a value is missing or not supported.
    """
    served, keys = architecture_of(gguf), Keys(gguf)
    gguf.check_types()
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is None:
        raise CheckpointError("GGUF: expected a tensor 'token_embd.weight', got none")
    num_heads, hidden_size = keys.size("attention.head_count"), keys.size("embedding_length")
    head_dim = keys.size("attention.key_length", hidden_size // num_heads)
    for name in ("attention.value_length", *(() if served.rotates_in_part else ("rope.dimension_count",))):
        keys.require(name, keys.size(name, head_dim), head_dim)
    if (causal := keys.get("attention.causal")) is not None:
        keys.require("attention.causal", causal, True)
    context = keys.size("context_length")
    own = served.fields(gguf, keys)
    config = {
        "architectures": [served.architecture],
        "model_type": served.model_type,
        "dtype": _dtype(gguf),
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden_size,
        "intermediate_size": own.get("intermediate_size")
        or keys.size("feed_forward_length", hidden_size if served.has_experts else None),
        "num_hidden_layers": keys.size("block_count", most=MAX_LAYERS),
        "num_attention_heads": num_heads,
        "num_key_value_heads": own.get("num_key_value_heads") or keys.size("attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "max_position_embeddings": context,
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": keys.number("rope.freq_base", 10_000.0),
        "rope_scaling": None if "rope_scaling" in own else _rope_scaling(gguf, keys, context, head_dim),
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        **_experts(keys, served),
        **own,
    }
    if types := packed_types(gguf):
        config["quantization_config"] = {"quant_method": "gguf", "types": types, "tiled_heads": tiled_heads(gguf)}
    return config


def read_generation_config(gguf: Gguf) -> dict[str, Any]:
    """Returns what `generation_config.json` says of the model: the tokens that end an answer, and how to sample."""
    tokens, kinds = gguf.texts("tokenizer.ggml.tokens") or [], gguf.numbers("tokenizer.ggml.token_type")
    named = [gguf.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    ids = [each for each in named if type(each) is int and 0 <= each < len(tokens)]
    if kinds is not None and len(kinds) == len(tokens):
        ids += [index for index in np.flatnonzero(kinds == CONTROL).tolist() if tokens[index] in _END_TOKENS]
    stored = {field: gguf.get(f"general.sampling.{name}") for field, name in _SAMPLING.items()}
    # As `Keys.number` does: float32 in files.
    sampling = {field: float(str(np.float32(each))) if type(each) is float else each for field, each in stored.items()}
    ends = {"eos_token_id": list(dict.fromkeys(ids))} if ids else {}
    return ends | {field: value for field, value in sampling.items() if value is not None}


def read_pooling_config(gguf: Gguf) -> dict[str, Any] | None:
    """Returns what `1_Pooling/config.json` says of the model; None if the metadata does not say how it pools.

    Raises:
        CheckpointError: it pools in a way that is not supported.
    """
    keys = Keys(gguf)
    kind = keys.get("pooling_type")
    if kind in (None, _NO_POOLING):
        return None
    if kind not in _POOLING:
        keys.refuse("pooling_type", "0 (none), 1 (mean) or 3 (last token)", kind)
    return {_POOLING[kind]: True}


def _experts(keys: Keys, served: GgufArchitecture) -> dict[str, Any]:
    if not served.has_experts:
        keys.require("expert_count", keys.get("expert_count") or 0, 0)
        return {}
    width = keys.size("expert_feed_forward_length")
    if width == keys.size("embedding_length"):  # then inputs and outputs of their matrices could be confused
        keys.require("expert_feed_forward_length", width, "a size other than that of embeddings")
    return {
        "num_experts": keys.size("expert_count"),
        "num_experts_per_tok": keys.size("expert_used_count"),
        "moe_intermediate_size": width,
        "norm_topk_prob": True,
    }


def _rope_scaling(gguf: Gguf, keys: Keys, context: int, head_dim: int) -> dict[str, Any] | None:
    """Returns `rope_scaling` of `config.json`; None for unscaled rotary frequencies."""
    if LONG_ROPE_FACTORS[0] in gguf.tensors:
        short, long = (
            _rope_factors(gguf, name, keys.size("rope.dimension_count", head_dim)) for name in LONG_ROPE_FACTORS
        )
        return {
            "rope_type": "longrope",
            "short_factor": short,
            "long_factor": long,
            "original_max_position_embeddings": keys.size("rope.scaling.original_context_length", context),
            "attention_factor": keys.number("rope.scaling.attn_factor", 1.0),
        }
    if ROPE_FACTORS in gguf.tensors:  # Llama 3.1's, as one factor for each wavelength
        factors = _rope_factors(gguf, ROPE_FACTORS, head_dim)
        return {
            "rope_type": "longrope",
            "short_factor": factors,
            "long_factor": factors,
            "original_max_position_embeddings": context,
            "attention_factor": 1.0,
        }
    kind = keys.get("rope.scaling.type")
    if kind in (None, "none") and keys.get("rope.scale_linear") is not None:
        return {"rope_type": "linear", "factor": keys.number("rope.scale_linear")}
    match kind:
        case None | "none":
            return None
        case "linear":
            return {"rope_type": "linear", "factor": keys.number("rope.scaling.factor")}
        case "yarn":
            return {
                "rope_type": "yarn",
                "factor": keys.number("rope.scaling.factor"),
                "original_max_position_embeddings": keys.size("rope.scaling.original_context_length", context),
                **{
                    field: keys.number(name)
                    for field, name in _YARN.items()
                    if keys.get(name)  # 0 says that there is none
                },
            }
        case other:
            keys.require("rope.scaling.type", other, "none, linear or yarn")
            return None


def _rope_factors(gguf: Gguf, name: str, rotary_dim: int) -> list[float]:
    stored = gguf.tensors.get(name)
    if stored is None or stored.type.name != "F32" or stored.shape != (rotary_dim // 2,):
        found = "none" if stored is None else f"{stored.type.name} of shape {[*stored.shape]}"
        raise CheckpointError(f"GGUF tensor {name!r}: expected F32 of shape [{rotary_dim // 2}], got {found}")
    factors = np.frombuffer(stored.data, "<f4", rotary_dim // 2, stored.offset)
    if not np.isfinite(factors).all() or not (factors > 0).all():
        raise CheckpointError(f"GGUF tensor {name!r}: expected positive numbers, got others")
    return factors.tolist()


def _dtype(gguf: Gguf) -> str:
    """Returns the type of the unquantized matrices, or the one that most models were trained in."""
    found = {each.type.name for each in gguf.tensors.values() if len(each.shape) > 1}
    return "float32" if found == {"F32"} else "float16" if found == {"F16"} else "bfloat16"
