"""Names of tensors in GGUF files (gguf-py/gguf/tensor_mapping.py of llama.cpp) and in published checkpoints."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from glimpse.engine.checkpoint.gguf.header import Gguf
from glimpse.engine.checkpoint.quantization import GGUF_FORMATS
from glimpse.engine.errors import CheckpointError

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


MMPROJ = "clip"
"""Value of `general.architecture` of files with an encoder."""
PROJECTOR = "clip.projector_type"
_QWEN_VISION: Mapping[str, str] = {
    "v.patch_embd": "visual.patch_embed.proj",
    "v.position_embd": "visual.pos_embed",
    "ln1": "visual.blocks.{}.norm1",
    "ln2": "visual.blocks.{}.norm2",
    **dict.fromkeys(("attn_qkv", "attn_q", "attn_k", "attn_v"), "visual.blocks.{}.attn.qkv"),
    "attn_out": "visual.blocks.{}.attn.proj",
    "v.post_ln": "visual.merger.ln_q",
    "mm.0": "visual.merger.mlp.0",
    "mm.2": "visual.merger.mlp.2",
}
_ENCODERS: Mapping[str, Mapping[str, str]] = {
    "qwen2vl_merger": {
        **_QWEN_VISION,
        "ffn_up": "visual.blocks.{}.mlp.fc1",
        "ffn_down": "visual.blocks.{}.mlp.fc2",
    },
    "qwen2.5vl_merger": {
        **_QWEN_VISION,
        "ffn_gate": "visual.blocks.{}.mlp.gate_proj",
        "ffn_up": "visual.blocks.{}.mlp.up_proj",
        "ffn_down": "visual.blocks.{}.mlp.down_proj",
    },
    "qwen3vl_merger": {
        **_QWEN_VISION,
        "ffn_up": "visual.blocks.{}.mlp.linear_fc1",
        "ffn_down": "visual.blocks.{}.mlp.linear_fc2",
        "v.post_ln": "visual.merger.norm",
        "mm.0": "visual.merger.linear_fc1",
        "mm.2": "visual.merger.linear_fc2",
        "norm": "visual.deepstack_merger_list.{}.norm",
        "fc1": "visual.deepstack_merger_list.{}.linear_fc1",
        "fc2": "visual.deepstack_merger_list.{}.linear_fc2",
    },
    "idefics3": {
        "v.patch_embd": "model.vision_model.embeddings.patch_embedding",
        "v.position_embd": "model.vision_model.embeddings.position_embedding",
        "ln1": "model.vision_model.encoder.layers.{}.layer_norm1",
        "ln2": "model.vision_model.encoder.layers.{}.layer_norm2",
        "attn_q": "model.vision_model.encoder.layers.{}.self_attn.q_proj",
        "attn_k": "model.vision_model.encoder.layers.{}.self_attn.k_proj",
        "attn_v": "model.vision_model.encoder.layers.{}.self_attn.v_proj",
        "attn_out": "model.vision_model.encoder.layers.{}.self_attn.out_proj",
        "ffn_up": "model.vision_model.encoder.layers.{}.mlp.fc1",
        "ffn_down": "model.vision_model.encoder.layers.{}.mlp.fc2",
        "v.post_ln": "model.vision_model.post_layernorm",
        "mm.model.fc": "model.connector.modality_projection.proj",
    },
}
"""Names of an encoder's tensors, by the projector's type. In files those of blocks follow `v.blk.N.`, and those of what
DeepStack adds `v.deepstack.N.`"""
_QKV = ("attn_q", "attn_k", "attn_v")
_PATCHES = "visual.patch_embed.proj.weight"
_SECOND_FRAME = "v.patch_embd.weight.1"
_DEEPSTACK = re.compile(r"v\.deepstack\.(\d+)\.")
_SWAPPED: Mapping[str, str] = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}


class Parts(NamedTuple):
    """The tensors of a file that are one in published checkpoints."""

    names: tuple[str, ...]
    new_dim: int | None = None
    """Dimension that they are stacked in; None: they are concatenated in the first."""

    def shape(self, gguf: Gguf) -> tuple[int, ...]:
        """Returns the shape of the whole, if the parts have the same but for the first dimension."""
        shapes = [gguf.tensors[name].shape for name in self.names]
        if self.new_dim is not None:
            return (*shapes[0][: self.new_dim], len(shapes), *shapes[0][self.new_dim :])
        return (sum(shape[0] for shape in shapes), *shapes[0][1:])


BLOCKS = "blocks"
"""In place of "weight" in the name of a matrix whose blocks are computed with as they are."""


def checkpoint_tensors(gguf: Gguf) -> list[tuple[str, Parts]]:
    """Returns the name of each tensor in published checkpoints, and what it is made of. Tensors that no served model
    has keep theirs, so that loading names them."""
    if gguf.get("general.architecture") == MMPROJ:
        return [*_encoder_tensors(gguf).items()]
    return [(ours, Parts((name,))) for name, ours in _checkpoint_names(gguf).items()]


def swaps_mlp(gguf: Gguf) -> bool:
    """Returns whether the names of the products of an encoder's MLPs are exchanged, as in old files (llama.cpp,
    tools/mtmd/clip.cpp)."""
    up, norm = gguf.tensors.get("v.blk.0.ffn_up.weight"), gguf.tensors.get("v.blk.0.ln1.weight")
    return up is not None and norm is not None and up.shape[-1] != norm.shape[0] == up.shape[0]


def _encoder_tensors(gguf: Gguf) -> dict[str, Parts]:
    found: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    # Files number what DeepStack adds by the block after which it does.
    blocks = sorted({each[1] for each in map(_DEEPSTACK.match, gguf.tensors) if each}, key=int)
    swapped = swaps_mlp(gguf)
    for name in gguf.tensors:
        stem, _, kind = (name[:-2] if name == _SECOND_FRAME else name).rpartition(".")
        ours, place = _encoder_part(stem, _ENCODERS.get(str(gguf.get(PROJECTOR)), {}), blocks, swapped=swapped)
        own = name if ours is None else f"{ours}.{kind}"
        found[own].append((1 if name == _SECOND_FRAME else place, name))
    whole = {
        ours: Parts(tuple(name for _, name in sorted(parts)), 2 if ours == _PATCHES else None)
        for ours, parts in found.items()
    }
    for parts in whole.values():
        _check_shapes(gguf, parts)
    return whole


def _check_shapes(gguf: Gguf, parts: Parts) -> None:
    first, *others = (gguf.tensors[name].shape for name in parts.names)
    if parts.new_dim is not None and len(first) != 4:
        raise CheckpointError(f"GGUF tensor {parts.names[0]!r}: expected 4 dimensions, got {len(first)}")
    for name, shape in zip(parts.names[1:], others, strict=True):
        if shape != (first if parts.new_dim is not None else (shape[0], *first[1:])):
            raise CheckpointError(
                f"GGUF tensor {name!r}: expected the shape of {parts.names[0]!r}, {[*first]}, got {[*shape]}"
            )


def _encoder_part(
    stem: str, table: Mapping[str, str], blocks: Sequence[str], *, swapped: bool
) -> tuple[str | None, int]:
    """Returns a layer's name in checkpoints, if it is known, and its place among those that are one there."""
    match stem.split("."):
        case ["v", "blk", block, each]:
            ours = table.get(_SWAPPED.get(each, each) if swapped else each)
            return ours and ours.format(block), _QKV.index(each) if each in _QKV else 0
        case ["v", "deepstack", block, each] if block in blocks:
            ours = table.get(each)
            return ours and ours.format(blocks.index(block)), 0
        case _:
            return table.get(stem), 0


def _checkpoint_names(gguf: Gguf) -> dict[str, str]:
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
