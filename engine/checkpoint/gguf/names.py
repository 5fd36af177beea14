"""Names of tensors in GGUF files and in published checkpoints, by the tables in `architectures` and `projectors`."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from glimpse.engine.checkpoint.gguf.architectures import (
    LONG_ROPE_FACTORS,
    MMPROJ,
    ROPE_FACTORS,
    Change,
    architecture_of,
    num_layers,
)
from glimpse.engine.checkpoint.gguf.encoder import swaps_mlp
from glimpse.engine.checkpoint.gguf.header import Gguf
from glimpse.engine.checkpoint.gguf.keys import Keys
from glimpse.engine.checkpoint.gguf.projectors import projector_of
from glimpse.engine.checkpoint.quantization import GGUF_FORMATS
from glimpse.engine.errors import CheckpointError

_EXPERT_NAMES: Mapping[str, str] = {
    "ffn_gate_exps": "gate_proj",
    "ffn_up_exps": "up_proj",
    "ffn_down_exps": "down_proj",
}
"""Matrices of all experts of a layer, stacked."""
_STACKS: Mapping[str, Sequence[str]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""Matrices of Phi-3's that stack others."""
_OF_MTP: Mapping[str, str] = {
    "nextn.eh_proj": "fc",
    "nextn.enorm": "pre_fc_norm_embedding",
    "nextn.hnorm": "pre_fc_norm_hidden",
    "nextn.shared_head_norm": "norm",
}
"""Around the layer of multi-token prediction, which is one more than the decoder has."""
_QKV = re.compile(r"\battn[._]([qkv])\b")
"""In names of matrices that checkpoints may have as one."""
_SECOND_FRAME = "v.patch_embd.weight.1"
_DEEPSTACK = re.compile(r"v\.deepstack\.(\d+)\.")
_SWAPPED: Mapping[str, str] = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
BLOCKS, TILED_BLOCKS = "blocks", "tiled_blocks"
"""In place of "weight" in the name of a matrix whose blocks are computed with as they are, or once columns of heads are
in their order."""
_OF_ROWS = (None, Change.PERMUTED, Change.HALVED)
"""Changes that leave a row's blocks as they are."""
_TILE_INPUTS = 32
"""Columns of a head are a multiple of this where they are put in order after blocks are unpacked: no group spans two
heads, and no integers of 4 bits that are packed together."""


class Parts(NamedTuple):
    """The tensors of a file that are one in published checkpoints."""

    names: tuple[str, ...]
    new_dim: int | None = None
    """Dimension that they are stacked in; None: they are concatenated in the first."""

    def shape(self, gguf: Gguf) -> tuple[int, ...]:
        """Returns the shape of the whole, if the parts have the same but for the first dimension."""
        shapes = [_checkpoint_shape(gguf, name) for name in self.names]
        if self.new_dim is not None:
            return (*shapes[0][: self.new_dim], len(shapes), *shapes[0][self.new_dim :])
        if len(shapes) == 1:
            return shapes[0]
        return (sum(shape[0] for shape in shapes), *shapes[0][1:])


def checkpoint_tensors(gguf: Gguf) -> list[tuple[str, Parts]]:
    """Returns the name of each tensor in published checkpoints, and what it is made of. Tensors that no served model
    has keep theirs, so that loading names them."""
    if is_encoder(gguf):
        packed, tensors = encoder_types(gguf), _encoder_tensors(gguf)
        return [(_stored_name(name, packed, BLOCKS), parts) for name, parts in tensors.items()]
    return [(ours, Parts((name,))) for name, ours in _checkpoint_names(gguf).items()]


def is_packed(name: str) -> bool:
    """Returns whether a name is that of a matrix whose blocks are computed with."""
    return name.endswith((f".{BLOCKS}", f".{TILED_BLOCKS}"))


def _stored_name(name: str, packed: Mapping[str, str], kind: str) -> str:
    stem = name.removesuffix(".weight")
    return f"{stem}.{kind}" if stem in packed else name


def is_encoder(gguf: Gguf) -> bool:
    """Returns whether a file is an mmproj."""
    return gguf.get("general.architecture") == MMPROJ


def change_of(gguf: Gguf, name: str) -> Change | None:
    """Returns what llama.cpp's converter did to a tensor, by its name in the file."""
    row = projector_of(gguf) if is_encoder(gguf) else architecture_of(gguf)
    changes, stems = row.changes if row else {}, (name.rpartition(".")[0], name)
    return next((change for end, change in changes.items() if any(stem.endswith(end) for stem in stems)), None)


def _checkpoint_shape(gguf: Gguf, name: str) -> tuple[int, ...]:
    shape, change = gguf.tensors[name].shape, change_of(gguf, name)
    return shape if change is None else change.checkpoint_shape(shape)


def _encoder_tensors(gguf: Gguf) -> dict[str, Parts]:
    found: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    projector = projector_of(gguf)
    # Files number what DeepStack adds by the block after which it does.
    blocks = sorted({each[1] for each in map(_DEEPSTACK.match, gguf.tensors) if each}, key=int)
    swapped = swaps_mlp(gguf)
    for name in (each for each in gguf.tensors if projector is None or each != projector.unused):
        known = name.removesuffix(".1") if name == _SECOND_FRAME else name
        own = _encoder_name(known, projector.names if projector else {}, blocks, swapped=swapped)
        place = "qkv".index(part[1]) if (part := _QKV.search(name)) else name == _SECOND_FRAME
        found[own or name].append((int(place), name))
    whole = {
        ours: Parts(names, 2 if _SECOND_FRAME in names else None)
        for ours, parts in found.items()
        if (names := tuple(name for _, name in sorted(parts)))
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


def _encoder_name(name: str, table: Mapping[str, str], blocks: Sequence[str], *, swapped: bool) -> str | None:
    """Returns a tensor's name in checkpoints, if it is known."""
    match name.split("."):
        case ["v" | "a" as media, "blk", block, each, *kind]:
            rest = ".".join([_SWAPPED.get(each, each) if swapped else each, *kind])
            own = _named(f"{media}.{rest}", table) or _named(rest, table)
            return own and own.format(block)
        case ["v", "deepstack", block, *rest] if block in blocks:
            own = _named(".".join(rest), table)
            return own and own.format(blocks.index(block))
        case _:
            return _named(name, table)


def _named(name: str, table: Mapping[str, str]) -> str | None:
    """Returns a tensor's name by that of its layer, or by its own."""
    stem, _, kind = name.rpartition(".")
    return table.get(name) or (f"{table[stem]}.{kind}" if stem in table else None)


def _checkpoint_names(gguf: Gguf) -> dict[str, str]:
    configuring = (ROPE_FACTORS, *LONG_ROPE_FACTORS)
    names = {name: checkpoint_name(gguf, name) for name in gguf.tensors if name not in configuring}
    packed = packed_types(gguf)
    return {
        ours: _stored_name(name, packed, TILED_BLOCKS if _is_tiled(gguf, ours) else BLOCKS)
        for ours, name in names.items()
    }


def encoder_types(mmproj: Gguf) -> dict[str, str]:
    """Returns the type of each matrix of an mmproj that linears can store as it is, by its checkpoint name without
    `.weight`. Those of several tensors have one type."""
    types: dict[str, str] = {}
    for name, parts in _encoder_tensors(mmproj).items():
        tensors = [mmproj.tensors[part] for part in parts.names]
        kinds, changes = {each.type.name for each in tensors}, {change_of(mmproj, part) for part in parts.names}
        is_matrix = parts.new_dim is None and all(len(each.shape) == 2 for each in tensors)
        if name.endswith(".weight") and is_matrix and len(kinds) == 1 and changes <= {*_OF_ROWS}:
            types |= {name.removesuffix(".weight"): kind for kind in kinds & GGUF_FORMATS.keys()}
    return types


def tiled_heads(gguf: Gguf) -> tuple[int, int] | None:
    """Returns how many heads of delta nets a group has, and the number of groups, if their columns are not in order."""
    tiled = (name for name in gguf.tensors if change_of(gguf, name) is Change.TILED_INPUTS)
    if next(tiled, None) is None:
        return None
    keys = Keys(gguf)
    num_heads, num_groups = keys.size("ssm.time_step_rank"), keys.size("ssm.group_count")
    return None if num_heads == num_groups or num_heads % num_groups else (num_heads // num_groups, num_groups)


def packed_types(gguf: Gguf) -> dict[str, str]:
    """Returns the type of each matrix that linears can store as it is, by its checkpoint name without `.weight`.

    They are those of layers, except experts' routers and those with columns of heads of odd sizes that are not in their
    order, and of the output head, which may be the embedding too.
    """
    head = "output.weight" if "output.weight" in gguf.tensors else "token_embd.weight"
    types = {
        checkpoint_name(gguf, name).removesuffix(".weight"): tensor.type.name
        for name, tensor in gguf.tensors.items()
        if (name == head or name.startswith("blk.")) and ".ffn_gate_inp" not in name
        if len(tensor.shape) > 1 and tensor.type.name in GGUF_FORMATS
        if not _is_tiled(gguf, name) or _has_whole_groups(gguf, name)
    }
    parts = ((name, kind, part) for name, kind in types.items() for part in _STACKS.get(name.rpartition(".")[2], ()))
    return types | {name.replace(name.rpartition(".")[2], part): kind for name, kind, part in parts}


def _is_tiled(gguf: Gguf, name: str) -> bool:
    return change_of(gguf, name) is Change.TILED_INPUTS and tiled_heads(gguf) is not None


def _has_whole_groups(gguf: Gguf, name: str) -> bool:
    num_heads = Keys(gguf).size("ssm.time_step_rank")
    return gguf.tensors[name].shape[-1] % (num_heads * _TILE_INPUTS) == 0


def checkpoint_name(gguf: Gguf, name: str) -> str:
    """Returns the name in published checkpoints of a decoder's tensor, of which no blocks are kept."""
    table = architecture_of(gguf).names
    match name.split("."):
        case ["blk", layer, *rest] if layer.isdecimal() and (index := int(layer) - num_layers(Keys(gguf))) >= 0:
            own = _named(".".join(rest), _OF_MTP)
            return f"mtp.{own or _layer_name(f'layers.{index}', rest, table) or name}"
        case ["blk", layer, *rest]:
            return _layer_name(f"model.layers.{layer}", rest, table) or name
        case _:
            return _named(name, table) or name


def _layer_name(layer: str, rest: Sequence[str], table: Mapping[str, str]) -> str | None:
    if rest[0] in _EXPERT_NAMES:
        return f"{layer}.mlp.experts.{_EXPERT_NAMES[rest[0]]}"
    own = _named(".".join(rest), table)
    return own and f"{layer}.{own}"
