"""Names of tensors in GGUF files (gguf-py/gguf/tensor_mapping.py of llama.cpp) and in published checkpoints."""

from collections.abc import Mapping

from glimpse.engine.checkpoint.gguf.header import Gguf
from glimpse.engine.checkpoint.quantization import GGUF_FORMATS

_NAMES: Mapping[str, str] = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER_NAMES: Mapping[str, str] = {
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
_EXPERT_NAMES: Mapping[str, str] = {
    "ffn_gate_exps": "gate_proj",
    "ffn_up_exps": "up_proj",
    "ffn_down_exps": "down_proj",
}
"""Matrices of all experts of a layer, stacked."""
ROPE_FACTORS = "rope_freqs.weight"
"""A tensor that belongs to the configuration."""


BLOCKS = "blocks"
"""In place of "weight" in the name of a matrix whose blocks are computed with as they are."""


def checkpoint_names(gguf: Gguf) -> dict[str, str]:
    """Returns the name in published checkpoints of each tensor, by its name in the file. Tensors that no served model
    has keep theirs, so that loading names them."""
    names = {name: _checkpoint_name(name) for name in gguf.tensors if name != ROPE_FACTORS}
    packed = packed_types(gguf)
    return {
        ours: f"{stem}.{BLOCKS}" if (stem := name.removesuffix(".weight")) in packed else name
        for ours, name in names.items()
    }


def packed_types(gguf: Gguf) -> dict[str, str]:
    """Returns the type of each matrix that linears can store as it is, by its checkpoint name without `.weight`.

    They are those of layers, except experts' routers, and of the output head, which may be the embedding too.
    """
    head = "output.weight" if "output.weight" in gguf.tensors else "token_embd.weight"
    return {
        _checkpoint_name(name).removesuffix(".weight"): tensor.type.name
        for name, tensor in gguf.tensors.items()
        if (name == head or name.startswith("blk.")) and not name.endswith(".ffn_gate_inp.weight")
        if len(tensor.shape) > 1 and tensor.type.name in GGUF_FORMATS
    }


def _checkpoint_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in _NAMES:
        return f"{_NAMES[stem]}.{kind}"
    match stem.split("."):
        case ["blk", layer, part] if part in _LAYER_NAMES:
            return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{kind}"
        case ["blk", layer, part] if part in _EXPERT_NAMES:
            return f"model.layers.{layer}.mlp.experts.{_EXPERT_NAMES[part]}"
        case _:
            return name
