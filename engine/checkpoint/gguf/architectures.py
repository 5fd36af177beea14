"""The values of `general.architecture` that are served: names of tensors, what llama.cpp's converter does to them, and
what `config.json` says besides.

Names are those of gguf-py/gguf/tensor_mapping.py, keys those of gguf-py/gguf/constants.py. What the converter does is
in conversion/. Defaults are those with which llama.cpp runs a file (src/models/).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from glimpse.engine.checkpoint.gguf.header import Gguf
from glimpse.engine.checkpoint.gguf.keys import Keys
from glimpse.engine.errors import CheckpointError

MMPROJ = "clip"
"""Value of `general.architecture` of files with an encoder."""
ROPE_FACTORS = "rope_freqs.weight"
"""A tensor that belongs to the configuration."""


class Change(Enum):
    """What llama.cpp's converter does to a tensor; reading undoes it."""

    PERMUTED = auto()
    """Rows of each head: pairs of dimensions that rotate together are adjacent (`permute`)."""
    PLUS_ONE = auto()
    """1 is added, so that norms need not do it."""
    SQUEEZED = auto()
    """The second dimension, which is 1, is left out."""

    def checkpoint_shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """Returns a tensor's shape in checkpoints by that in a file."""
        return (stored[0], 1, *stored[1:]) if self is Change.SQUEEZED else stored


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
_PERMUTED: Mapping[str, Change] = {"attn_q": Change.PERMUTED, "attn_k": Change.PERMUTED}


def _window(_gguf: Gguf, keys: Keys) -> dict[str, Any]:
    if not keys.get("attention.sliding_window"):
        return {}
    return {"sliding_window": keys.size("attention.sliding_window"), "use_sliding_window": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufArchitecture:
    """A value of `general.architecture` that is served."""

    architecture: str
    """Name in `architectures` of `config.json`."""
    model_type: str
    names: Mapping[str, str] = field(default_factory=lambda: _NAMES)
    """Names in checkpoints by those in files, of which those of layers follow `blk.N.`."""
    changes: Mapping[str, Change] = field(default_factory=dict[str, Change])
    """By the end of the name of a tensor in files, without `.weight`."""
    fields: Callable[[Gguf, Keys], dict[str, Any]] = _window
    """Returns fields of `config.json` that architectures have otherwise: by default, a window of all layers if there is
    one, as in a Mistral's."""
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
    # Of Mistral Small 3.1 and later, and of Ministral 3.
    "mistral3": GgufArchitecture(
        architecture="MistralForCausalLM",
        model_type="mistral",
        changes=_PERMUTED,
        fields=lambda gguf, keys: {"sliding_window": None, **_window(gguf, keys)},
    ),
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
