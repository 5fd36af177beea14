"""The values of `general.architecture` that are served: names of tensors, what llama.cpp's converter does to them, and
what `config.json` says besides.

Names are those of gguf-py/gguf/tensor_mapping.py, keys those of gguf-py/gguf/constants.py. What the converter does is
in conversion/. Defaults are those with which llama.cpp runs a file (src/models/).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from math import prod
from typing import Any

import numpy as np

from glimpse.engine.checkpoint.gguf.header import Gguf
from glimpse.engine.checkpoint.gguf.keys import Keys
from glimpse.engine.errors import CheckpointError

MAX_LAYERS = 1024
MMPROJ = "clip"
"""Value of `general.architecture` of files with an encoder."""
ROPE_FACTORS = "rope_freqs.weight"
LONG_ROPE_FACTORS = ("rope_factors_short.weight", "rope_factors_long.weight")
"""Tensors that belong to the configuration: of Llama 3.1's, and LongRoPE's."""


class Change(Enum):
    """What llama.cpp's converter does to a tensor; reading undoes it."""

    PERMUTED = auto()
    """Rows of each head: pairs of dimensions that rotate together are adjacent (`permute`)."""
    PLUS_ONE = auto()
    """1 is added, so that norms need not do it."""
    HALVED = auto()
    """Dimensions of each head that rotate: of pairs, which are adjacent in checkpoints, the first ones are in front.
    Only in decoders whose positions have several axes."""
    SQUEEZED = auto()
    """The second dimension, which is 1, is left out."""
    UNSQUEEZED = auto()
    """A last dimension of 1 is added."""
    SCALAR = auto()
    """A number is an array of one."""
    SOFTPLUS = auto()
    """The function is stored."""
    PATCHES = auto()
    """Columns, which are the pixels of a patch with their channels, are a kernel."""
    TRANSPOSED = auto()
    """Rows and columns are exchanged."""
    TILED = auto()
    """Rows of values, which are the last ones: those of the first head of each group are in front, not a group's."""
    TILED_INPUTS = auto()
    """Columns, likewise."""
    TILED_DECAYS = auto()
    """Rows, likewise, of which the negative exponentials are stored."""
    TILED_CONVOLUTION = auto()
    """Rows, likewise, without the second dimension."""

    def checkpoint_shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """Returns a tensor's shape in checkpoints by that in a file."""
        if self is Change.UNSQUEEZED:
            return stored[:-1]
        if self is Change.TRANSPOSED:
            return stored[::-1]
        if self is Change.SCALAR:
            return stored[1:]
        if self is Change.PATCHES:
            return (stored[0], prod(stored[1:]))
        is_squeezed = self in (Change.SQUEEZED, Change.TILED_CONVOLUTION)
        return (stored[0], 1, *stored[1:]) if is_squeezed else stored


_NAMES: Mapping[str, str] = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
_OUTPUT_NORMS: Mapping[str, str] = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
"""Names in layers that have norms also after attention and after their MLP."""
_DELTA_NET: Mapping[str, str] = {
    **_NAMES,
    "post_attention_norm": "post_attention_layernorm",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_a": "linear_attn.A_log",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
_DELTA_NET_CHANGES: Mapping[str, Change | None] = {
    **dict.fromkeys(("attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta", "ssm_dt"), Change.TILED),
    "ssm_out": Change.TILED_INPUTS,
    "ssm_a": Change.TILED_DECAYS,
    "ssm_conv1d": Change.TILED_CONVOLUTION,
    "ssm_norm": None,
    "norm": Change.PLUS_ONE,
}
_PERMUTED: Mapping[str, Change | None] = {"attn_q": Change.PERMUTED, "attn_k": Change.PERMUTED}


def _window(_gguf: Gguf, keys: Keys) -> dict[str, Any]:
    if not keys.get("attention.sliding_window"):
        return {}
    return {"sliding_window": keys.size("attention.sliding_window"), "use_sliding_window": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufArchitecture:
    """A value of `general.architecture` that is served."""

    architecture: str | None
    """Name in `architectures` of `config.json`; None: it is not served without its encoder."""
    model_type: str
    names: Mapping[str, str] = field(default_factory=lambda: _NAMES)
    """Names in checkpoints by those in files, of which those of layers follow `blk.N.`."""
    changes: Mapping[str, Change | None] = field(default_factory=dict[str, Change | None])
    """By the end of a tensor's name in files, without `.weight`, of which the first that fits counts."""
    fields: Callable[[Gguf, Keys], dict[str, Any]] = _window
    """Returns fields of `config.json` that architectures have otherwise: by default, a window of all layers if there is
    one, as in a Mistral's."""
    rotates_in_part: bool = False
    """Some dimensions of each head do not rotate; the fields say how many do."""
    has_experts: bool = False
    """All layers have experts, whose weights add up to 1 for each token, in place of a gated MLP."""
    has_encoder: bool = False
    """The encoder is in an mmproj file (`gguf.mmproj`). Without it, the model reads text alone."""


def _gemma3(_gguf: Gguf, keys: Keys) -> dict[str, Any]:
    width, depth = keys.size("embedding_length"), keys.size("block_count")
    # Files do not tell the scale of scores: it differs in the model of 27B alone.
    own_scale = width // keys.size("attention.head_count") if depth == _GEMMA3_27B_LAYERS else None
    return {
        "query_pre_attn_scalar": own_scale or keys.size("attention.key_length"),
        "sliding_window": keys.size("attention.sliding_window"),
        "sliding_window_pattern": keys.size("attention.sliding_window_pattern", 6),
        "rope_local_base_freq": keys.number("rope.freq_base_swa", 10_000.0),
        "final_logit_softcapping": keys.get("final_logit_softcapping"),
    }


_GEMMA3_27B_LAYERS = 62


def _gemma4(gguf: Gguf, keys: Keys) -> dict[str, Any]:
    """Returns the fields of Gemma 4. Of the larger models, which have no embeddings for each layer, the tokens of an
    image attend to each other, as llama.cpp has it; files do not tell."""
    is_sliding = [each > 0 for each in keys.layers("attention.sliding_window_pattern")]
    widths = keys.numbers_of_layers("feed_forward_length")
    heads = dict(zip(is_sliding, keys.numbers_of_layers("attention.head_count_kv"), strict=True))
    first_full = next((index for index, each in enumerate(is_sliding) if not each), 0)
    full_dim = keys.size("attention.key_length")
    own, sharing = (
        keys.size(name) if keys.get(name) else 0
        for name in ("embedding_length_per_layer_input", "attention.shared_kv_layers")
    )
    factors = gguf.tensors.get(ROPE_FACTORS)
    table = gguf.tensors.get("per_layer_token_embd.weight")
    ropes = {
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": keys.number("rope.freq_base"),
            "partial_rotary_factor": 1.0 if factors is None else _rotating_share(gguf, full_dim),
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": keys.number("rope.freq_base_swa", 10_000.0)},
    }
    return {
        "head_dim": keys.size("attention.key_length_swa"),
        "global_head_dim": full_dim,
        "num_key_value_heads": heads.get(True) or heads[False],
        "num_global_key_value_heads": heads.get(False),
        "attention_k_eq_v": f"blk.{first_full}.attn_v.weight" not in gguf.tensors,
        "intermediate_size": min(widths),
        "use_double_wide_mlp": max(widths) > min(widths),
        "layer_types": ["sliding_attention" if each else "full_attention" for each in is_sliding],
        "sliding_window": keys.size("attention.sliding_window"),
        "num_kv_shared_layers": sharing,
        "hidden_size_per_layer_input": own,
        "vocab_size_per_layer_input": 1 if table is None else table.shape[0],
        "use_bidirectional_attention": None if own else "vision",
        "final_logit_softcapping": keys.get("final_logit_softcapping"),
        "rope_parameters": ropes,
        "rope_scaling": None,
    }


def _rotating_share(gguf: Gguf, head_dim: int) -> float:
    """Returns the share of a head's dimensions that rotate: the others have factors of 10³⁰."""
    stored = gguf.tensors[ROPE_FACTORS]
    if stored.type.name != "F32" or stored.shape != (head_dim // 2,):
        found = f"{stored.type.name} of shape {[*stored.shape]}"
        raise CheckpointError(f"GGUF tensor {ROPE_FACTORS!r}: expected F32 of shape [{head_dim // 2}], got {found}")
    return float((np.frombuffer(stored.data, "<f4", head_dim // 2, stored.offset) == 1).mean())


def _lfm2(_gguf: Gguf, keys: Keys) -> dict[str, Any]:
    heads = keys.layers("attention.head_count_kv")
    attends = [number > 0 for number in heads]
    if len({*heads} - {0}) != 1:
        keys.refuse("attention.head_count_kv", "as many in each layer with attention, and 0 in the others", heads)
    return {
        "num_key_value_heads": max(heads),
        "layer_types": ["full_attention" if each else "conv" for each in attends],
        "norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "conv_L_cache": keys.size("shortconv.l_cache"),
        "block_auto_adjust_ff_dim": False,
    }


def _qwen3_5(_gguf: Gguf, keys: Keys) -> dict[str, Any]:
    num_heads = keys.size("ssm.time_step_rank")
    if (width := keys.size("ssm.inner_size")) % num_heads:
        keys.refuse("ssm.inner_size", f"a multiple of the {num_heads} heads", width)
    rope = {
        "rope_type": "default",
        "rope_theta": keys.number("rope.freq_base", 10_000.0),
        "partial_rotary_factor": keys.size("rope.dimension_count") / keys.size("attention.key_length"),
        "mrope_section": [int(each) for each in keys.numbers("rope.dimension_sections", 3)],
        "mrope_interleaved": True,
    }
    shared = {"shared_expert_intermediate_size": keys.size("expert_shared_feed_forward_length", 1)}
    return {
        "num_hidden_layers": num_layers(keys),
        "mtp_num_hidden_layers": _num_mtp_layers(keys),
        "full_attention_interval": keys.size("full_attention_interval", 4),
        "linear_conv_kernel_dim": keys.size("ssm.conv_kernel"),
        "linear_key_head_dim": keys.size("ssm.state_size"),
        "linear_num_key_heads": keys.size("ssm.group_count"),
        "linear_num_value_heads": num_heads,
        "linear_value_head_dim": width // num_heads,
        "rope_parameters": rope,
        **(shared if keys.get("expert_count") else {}),
    }


def _phi3(gguf: Gguf, keys: Keys) -> dict[str, Any]:
    head_dim = keys.size("embedding_length") // keys.size("attention.head_count")
    share = keys.size("rope.dimension_count", head_dim) / head_dim
    return {"sliding_window": None, **_window(gguf, keys), "partial_rotary_factor": share}


def _glm4(_gguf: Gguf, keys: Keys) -> dict[str, Any]:
    head_dim = keys.size("attention.key_length", keys.size("embedding_length") // keys.size("attention.head_count"))
    return {
        "num_hidden_layers": num_layers(keys),
        "num_nextn_predict_layers": _num_mtp_layers(keys),
        "partial_rotary_factor": keys.size("rope.dimension_count", head_dim) / head_dim,
    }


def num_layers(keys: Keys) -> int:
    """Returns how many layers a decoder has, without those that only draft tokens."""
    return keys.size("block_count", most=MAX_LAYERS) - _num_mtp_layers(keys)


def _num_mtp_layers(keys: Keys) -> int:
    """Returns how many layers only draft tokens, which follow the others."""
    count, drafting = keys.size("block_count", most=MAX_LAYERS), keys.get("nextn_predict_layers") or 0
    if type(drafting) is not int or not 0 <= drafting < count:
        keys.refuse("nextn_predict_layers", f"a whole number below {count}", drafting)
    return drafting


_QWEN3_5 = GgufArchitecture(
    architecture="Qwen3_5ForCausalLM",
    model_type="qwen3_5_text",
    names=_DELTA_NET,
    changes=_DELTA_NET_CHANGES,
    fields=_qwen3_5,
    rotates_in_part=True,
    has_encoder=True,
)

GGUF_ARCHITECTURES: Mapping[str, GgufArchitecture] = {
    "llama": GgufArchitecture(architecture="LlamaForCausalLM", model_type="llama", changes=_PERMUTED),
    "qwen2": GgufArchitecture(architecture="Qwen2ForCausalLM", model_type="qwen2"),
    "qwen3": GgufArchitecture(architecture="Qwen3ForCausalLM", model_type="qwen3"),
    "qwen3moe": GgufArchitecture(architecture="Qwen3MoeForCausalLM", model_type="qwen3_moe", has_experts=True),
    "gemma3": GgufArchitecture(
        architecture="Gemma3ForCausalLM",
        model_type="gemma3_text",
        names=_NAMES | _OUTPUT_NORMS,
        changes={"norm": Change.PLUS_ONE},
        fields=_gemma3,
    ),
    # E2B, E4B and 31B.
    "gemma4": GgufArchitecture(
        architecture="Gemma4ForCausalLM",
        model_type="gemma4_text",
        names={
            **_NAMES,
            **_OUTPUT_NORMS,
            "per_layer_token_embd": "model.embed_tokens_per_layer",
            "per_layer_model_proj": "model.per_layer_model_projection",
            "per_layer_proj_norm": "model.per_layer_projection_norm",
            "inp_gate": "per_layer_input_gate",
            "proj": "per_layer_projection",
            "post_norm": "post_per_layer_input_norm",
            "layer_output_scale.weight": "layer_scalar",
        },
        fields=_gemma4,
        has_encoder=True,
    ),
    "lfm2": GgufArchitecture(
        architecture="Lfm2ForCausalLM",
        model_type="lfm2",
        names={
            **_NAMES,
            "token_embd_norm": "model.norm",
            "shortconv.in_proj": "conv.in_proj",
            "shortconv.conv": "conv.conv",
            "shortconv.out_proj": "conv.out_proj",
        },
        changes={"shortconv.conv": Change.SQUEEZED},
        fields=_lfm2,
    ),
    "phi3": GgufArchitecture(
        architecture="Phi3ForCausalLM",
        model_type="phi3",
        names={**_NAMES, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
        fields=_phi3,
        rotates_in_part=True,
    ),
    # Of GLM-4.1V, GLM-4.6V-Flash and GLM-OCR.
    "glm4": GgufArchitecture(
        architecture=None,
        model_type="glm4v_text",
        names={
            **_NAMES,
            "post_attention_norm": "post_self_attn_layernorm",
            "post_ffw_norm": "post_mlp_layernorm",
            "ffn_up": "mlp.gate_up_proj",
        },
        changes={"attn_q": Change.HALVED, "attn_k": Change.HALVED},
        fields=_glm4,
        rotates_in_part=True,
        has_encoder=True,
    ),
    "qwen35": _QWEN3_5,
    "qwen35moe": replace(
        _QWEN3_5, architecture="Qwen3_5MoeForCausalLM", model_type="qwen3_5_moe_text", has_experts=True
    ),
    # Of Mistral Small 3.1 and later, and of Ministral 3.
    "mistral3": GgufArchitecture(
        architecture="MistralForCausalLM",
        model_type="mistral",
        changes=_PERMUTED,
        fields=lambda gguf, keys: {"sliding_window": None, **_window(gguf, keys)},
    ),
    "paddleocr": GgufArchitecture(architecture=None, model_type="paddleocr_vl_text", has_encoder=True),
    # Decoders of vision models. Without media their positions are those of text models.
    "qwen2vl": GgufArchitecture(architecture="Qwen2ForCausalLM", model_type="qwen2", has_encoder=True),
    "qwen3vl": GgufArchitecture(architecture="Qwen3ForCausalLM", model_type="qwen3", has_encoder=True),
    "qwen3vlmoe": GgufArchitecture(
        architecture="Qwen3MoeForCausalLM", model_type="qwen3_moe", has_experts=True, has_encoder=True
    ),
}


def architecture_of(gguf: Gguf) -> GgufArchitecture:
    """Returns the architecture of a file. Raises CheckpointError if it is not served."""
    name = gguf.get("general.architecture")
    if not isinstance(name, str) or name not in GGUF_ARCHITECTURES:
        supported = ", ".join(GGUF_ARCHITECTURES)
        if name == MMPROJ:
            raise CheckpointError("the GGUF file is an encoder, an mmproj; name the file of its decoder as the model")
        raise CheckpointError(f"GGUF metadata: 'general.architecture': expected one of {supported}; got {name!r:.80}")
    return GGUF_ARCHITECTURES[name]
