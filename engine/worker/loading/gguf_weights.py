"""Reads the tensors of a GGUF file by the names of published checkpoints: dequantized, unless linears store their
integers.

The formulas of the blocks are those of llama.cpp (ggml/src/ggml-quants.c, `dequantize_row_…`).
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from math import prod
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from glimpse.engine.checkpoint.gguf.architectures import Change
from glimpse.engine.checkpoint.gguf.header import Gguf, GgufTensor
from glimpse.engine.checkpoint.gguf.keys import Keys
from glimpse.engine.checkpoint.gguf.names import Parts, change_of, checkpoint_tensors, is_encoder, is_packed
from glimpse.engine.checkpoint.gguf.tensor_types import TENSOR_TYPES
from glimpse.engine.errors import CheckpointError

_log = logging.getLogger(__name__)

_CPU = torch.device("cpu")
_ROWS_AT_ONCE_BYTES = 4 << 20
"""Blocks are dequantized in pieces of about this size, so that what is between takes little memory."""


def gguf_tensors(file: Path, device: torch.device) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """Yields each tensor's name and a function that reads it: as float32 if its type is a quantized one, or as uint8
    [rows, bytes of a row's blocks] if `is_packed`.

    Raises:
        CheckpointError: the file cannot be read, or a tensor has a type that is not supported.
    """
    gguf = Gguf(file)
    gguf.check_types()
    tensors = checkpoint_tensors(gguf)
    types = Counter(
        gguf.tensors[part].type.name for name, parts in tensors if not is_packed(name) for part in parts.names
    )
    if types := Counter({kind: count for kind, count in types.items() if kind in _UNPACKED}):
        found = ", ".join(f"{count} of {kind}" for kind, count in types.most_common())
        _log.info("%s: tensors are dequantized while they are loaded: %s", file.resolve().name, found)
    for name, parts in sorted(tensors, key=lambda each: gguf.tensors[each[1].names[0]].offset):
        yield name, partial(_read_whole, gguf, parts, device, packed=is_packed(name))


def _read_whole(gguf: Gguf, parts: Parts, device: torch.device, *, packed: bool) -> Tensor:
    read = [_read(gguf, name, device, packed=packed) for name in parts.names]
    if parts.new_dim is not None:
        return torch.stack(read, dim=parts.new_dim)
    return read[0] if len(read) == 1 else torch.cat(read)


def _read(gguf: Gguf, name: str, device: torch.device, *, packed: bool) -> Tensor:
    if not packed:
        return as_in_checkpoints(gguf, name, read_tensor(gguf, name, device))
    blocks = _octets(gguf.tensors[name], device).view(*gguf.tensors[name].shape[:-1], -1)
    # The order of columns is that of `untiled`.
    return blocks if change_of(gguf, name) is Change.TILED_INPUTS else as_in_checkpoints(gguf, name, blocks)


def _octets(stored: GgufTensor, device: torch.device) -> Tensor:
    return torch.frombuffer(stored.data, dtype=torch.uint8, count=stored.num_bytes, offset=stored.offset).to(device)


def read_tensor(gguf: Gguf, name: str, device: torch.device = _CPU) -> Tensor:
    """Returns a tensor as the file has it; as float32 if its type is a quantized one."""
    stored = gguf.tensors[name]
    octets = _octets(stored, device)
    if (dtype := _PLAIN.get(stored.type.name)) is not None:
        return octets.view(dtype).view(stored.shape)
    return dequantize(stored.type.name, octets.view(prod(stored.shape[:-1]), -1)).view(stored.shape)


def as_in_checkpoints(gguf: Gguf, name: str, tensor: Tensor) -> Tensor:
    """Returns a file's tensor as checkpoints have it, before llama.cpp's converter changed it."""
    change = change_of(gguf, name)
    if change in _OF_TENSORS:
        return _OF_TENSORS[change](tensor)
    match change:
        case Change.PERMUTED:
            return _unpermuted(gguf, tensor, name)
        case Change.HALVED:
            return _interleaved(Keys(gguf), tensor, name)
        case Change.TILED:
            return _untiled(gguf, tensor)
        case Change.TILED_INPUTS:
            return _grouped(gguf, tensor.mT).mT.contiguous()
        case Change.TILED_DECAYS:
            return _untiled(gguf, tensor.neg().log())
        case Change.TILED_CONVOLUTION:
            return _untiled(gguf, tensor)[:, None]
        case _:
            return tensor


_OF_TENSORS: Mapping[Change | None, Callable[[Tensor], Tensor]] = {
    Change.PLUS_ONE: lambda tensor: tensor.float() - 1,
    Change.SQUEEZED: lambda tensor: tensor[:, None],
    Change.UNSQUEEZED: lambda tensor: tensor.flatten(-2),
    Change.TRANSPOSED: lambda tensor: tensor.mT,
    Change.SCALAR: lambda tensor: tensor.flatten()[0],
    Change.SOFTPLUS: lambda tensor: tensor.expm1().log(),
    Change.PATCHES: lambda tensor: tensor.permute(0, 2, 3, 1).flatten(1),
}
"""What undoes changes that nothing else in the file says more of."""


def _untiled(gguf: Gguf, tensor: Tensor) -> Tensor:
    """Returns rows of values with the heads of each group one after the other, behind rows of queries and keys."""
    others = max(0, len(tensor) - Keys(gguf).size("ssm.inner_size"))
    return torch.cat([tensor[:others], _grouped(gguf, tensor[others:])])


def _grouped(gguf: Gguf, values: Tensor) -> Tensor:
    keys = Keys(gguf)
    num_groups, num_heads = keys.size("ssm.group_count"), keys.size("ssm.time_step_rank")
    if num_heads % num_groups or len(values) % num_heads:
        keys.refuse("ssm.time_step_rank", f"a multiple of {num_groups} that divides {len(values)} rows", num_heads)
    return values.unflatten(0, (num_heads // num_groups, num_groups, -1)).transpose(0, 1).flatten(0, 2)


def _unpermuted(gguf: Gguf, tensor: Tensor, name: str) -> Tensor:
    """Returns rows in the order of published checkpoints: the first halves of a head's pairs of dimensions, then the
    second ones."""
    prefix = f"{gguf.get('general.architecture')}.{'vision.' if is_encoder(gguf) else ''}attention."
    heads = "head_count_kv" if ".attn_k." in name else "head_count"
    num_heads = gguf.get(prefix + heads) or gguf.get(prefix + "head_count")
    if not isinstance(num_heads, int) or num_heads < 1 or len(tensor) % (2 * num_heads):
        raise CheckpointError(
            f"GGUF metadata: '{prefix}{heads}': expected a divisor of half of {len(tensor)} rows, got {num_heads!r:.80}"
        )
    return tensor.unflatten(0, (num_heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def _interleaved(keys: Keys, tensor: Tensor, name: str) -> Tensor:
    """Returns rows with the pairs of dimensions that rotate next to each other, unless they are so already."""
    if not keys.has("rope.dimension_sections"):
        return tensor
    num_heads = keys.size("attention.head_count")
    heads = keys.size("attention.head_count_kv", num_heads) if ".attn_k." in name else num_heads
    head_dim, rest = divmod(len(tensor), heads)
    rotating = keys.size("rope.dimension_count", head_dim)
    if rest or rotating % 2 or rotating > head_dim:
        keys.refuse("rope.dimension_count", f"an even number up to a head's share of {len(tensor)} rows", rotating)
    rows = tensor.unflatten(0, (heads, head_dim))
    pairs = rows[:, :rotating].unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)
    return torch.cat([pairs, rows[:, rotating:]], dim=1).flatten(0, 1)


class Groups(NamedTuple):
    """What blocks hold: the weight of a value is value · scale - minimum."""

    values: Tensor
    """uint8 [rows, inputs]"""
    scale: Tensor
    """float32 [rows, groups], of equally many consecutive inputs each."""
    zero: int | Tensor
    """The zero point of all groups, or minima, float32 [rows, groups]."""

    @property
    def minima(self) -> Tensor:
        """float32 [rows, groups]"""
        return self.zero * self.scale if isinstance(self.zero, int) else self.zero

    @property
    def zero_points(self) -> Tensor:
        """uint8 [rows, groups]. Only for groups that have no minima."""
        assert isinstance(self.zero, int)
        return torch.full_like(self.scale, self.zero, dtype=torch.uint8)


def untiled(columns: Tensor, tiled_heads: tuple[int, int]) -> Tensor:
    """Returns columns, or their groups, in the order of their heads; see `GgufQuantization.tiled_heads`."""
    return columns.unflatten(1, (*tiled_heads, -1)).transpose(1, 2).flatten(1)


def unpack(kind: str, rows: Tensor, tiled_heads: tuple[int, int] | None = None) -> Groups:
    """Returns what the blocks of a matrix hold: uint8 [rows, bytes]. `tiled_heads`: how columns are `untiled`."""
    values, scale, zero = zip(*(_UNPACKED[kind](blocks) for blocks in _pieces(kind, rows)), strict=True)

    def joined(parts: Iterable[Tensor]) -> Tensor:
        whole = torch.cat([*parts]).view(len(rows), -1)
        return whole if tiled_heads is None else untiled(whole, tiled_heads)

    return Groups(joined(values), joined(scale), zero[0] if isinstance(zero[0], int) else joined(zero))


def dequantize(kind: str, rows: Tensor) -> Tensor:
    """Returns the weights of the blocks of a matrix: uint8 [rows, bytes] → float32 [rows, inputs]."""
    return torch.cat([_weights(_UNPACKED[kind](blocks)) for blocks in _pieces(kind, rows)]).view(len(rows), -1)


def _weights(groups: Groups) -> Tensor:
    grouped, scale = groups.values.float().unflatten(1, (groups.scale.shape[1], -1)), groups.scale[:, :, None]
    if isinstance(groups.zero, int):
        return ((grouped - groups.zero) * scale).flatten(1)
    return (grouped * scale - groups.zero[:, :, None]).flatten(1)


def _pieces(kind: str, rows: Tensor) -> tuple[Tensor, ...]:
    """Divides a matrix into uint8 [blocks, bytes of a block]."""
    size = _BLOCK_BYTES[kind]
    return rows.reshape(-1, size).split(max(1, _ROWS_AT_ONCE_BYTES // size))


def _floats(blocks: Tensor, at: int) -> Tensor:
    """float32 [blocks, 1] of float16 numbers."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(octets: Tensor) -> Tensor:
    """[…, n] → […, 2n]: the low four bits of all, then the high ones."""
    return torch.cat([octets & 15, octets >> 4], dim=-1)


def _fifth_bits(blocks: Tensor, at: int) -> Tensor:
    """16 in each of a block's 32 values whose bit in the word is set, 0 in the others."""
    places = torch.arange(8, device=blocks.device, dtype=torch.uint8)
    return (blocks[:, at : at + 4, None] >> places & 1).flatten(1) << 4


def _q4_0(blocks: Tensor) -> Groups:
    return Groups(_nibbles(blocks[:, 2:]), _floats(blocks, 0), 8)


def _q4_1(blocks: Tensor) -> Groups:
    return Groups(_nibbles(blocks[:, 4:]), _floats(blocks, 0), -_floats(blocks, 2))


def _q5_0(blocks: Tensor) -> Groups:
    return Groups(_nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2), _floats(blocks, 0), 16)


def _q5_1(blocks: Tensor) -> Groups:
    return Groups(_nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4), _floats(blocks, 0), -_floats(blocks, 2))


def _q8_0(blocks: Tensor) -> Groups:
    return Groups(blocks[:, 2:] ^ 128, _floats(blocks, 0), 128)


def _pairs(octets: Tensor) -> Tensor:
    """[blocks, 64] → [blocks, 8, 32]: of each 32 bytes the lowest two bits of all, then the next ones."""
    places = torch.arange(0, 8, 2, device=octets.device, dtype=torch.uint8)[:, None]
    return (octets.reshape(-1, 2, 1, 32) >> places & 3).flatten(1, 2)


def _q2_k(blocks: Tensor) -> Groups:
    scales, minima = (
        _floats(blocks, at) * part.float() for at, part in ((80, blocks[:, :16] & 15), (82, blocks[:, :16] >> 4))
    )
    return Groups(_pairs(blocks[:, 16:80]).flatten(1), scales, minima)


def _q3_k(blocks: Tensor) -> Groups:
    places = torch.arange(8, device=blocks.device, dtype=torch.uint8)[:, None]
    third = (blocks[:, None, :32] >> places & 1) << 2
    high = (blocks[:, None, 104:108] >> places[::2] & 3).flatten(1) << 4
    scales = _floats(blocks, 108) * ((_nibbles(blocks[:, 96:104]) | high).float() - 32)
    return Groups((_pairs(blocks[:, 32:96]) | third).flatten(1), scales, 4)


def _scales_and_minima(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """float32 [blocks, 8], twice, of Q4_K and Q5_K: numbers of six bits in twelve bytes, times a factor."""
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat([first & 63, (third & 15) | (first >> 6 << 4)], dim=1)
    minima = torch.cat([second & 63, (third >> 4) | (second >> 6 << 4)], dim=1)
    return _floats(blocks, 0) * scales.float(), _floats(blocks, 2) * minima.float()


def _q4_k(blocks: Tensor) -> Groups:
    return Groups(_nibbles(blocks[:, 16:].view(-1, 4, 32)).flatten(1), *_scales_and_minima(blocks))


def _q5_k(blocks: Tensor) -> Groups:
    places = torch.arange(8, device=blocks.device, dtype=torch.uint8)[:, None]
    fifth = (blocks[:, 16:48].view(-1, 1, 32) >> places & 1) << 4
    values = _nibbles(blocks[:, 48:].view(-1, 4, 32)).view(-1, 8, 32) | fifth
    return Groups(values.flatten(1), *_scales_and_minima(blocks))


def _q6_k(blocks: Tensor) -> Groups:
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).view(-1, 2, 4, 32)
    places = torch.arange(0, 8, 2, device=blocks.device, dtype=torch.uint8)[:, None]
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> places & 3) << 4
    scales = _floats(blocks, 208) * blocks[:, 192:208].view(torch.int8).float()
    return Groups((low | high).flatten(1), scales, 32)


_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The values of IQ4's sixteen numbers (`kvalues_iq4nl`)."""
_IQ4_ZERO = 127


def _iq4_values(octets: Tensor) -> Tensor:
    table = torch.tensor([value + _IQ4_ZERO for value in _IQ4], dtype=torch.uint8, device=octets.device)
    return table[_nibbles(octets).int()].flatten(1)


def _iq4_nl(blocks: Tensor) -> Groups:
    return Groups(_iq4_values(blocks[:, 2:]), _floats(blocks, 0), _IQ4_ZERO)


def _iq4_xs(blocks: Tensor) -> Groups:
    places = torch.arange(0, 8, 2, device=blocks.device, dtype=torch.uint8)
    high = (blocks[:, 2:4, None] >> places & 3).flatten(1) << 4
    low = torch.stack([blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4], dim=2).flatten(1)
    scales = _floats(blocks, 0) * ((low | high).float() - 32)
    return Groups(_iq4_values(blocks[:, 8:].view(-1, 8, 16)), scales, _IQ4_ZERO)


_PLAIN: Mapping[str, torch.dtype] = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_UNPACKED: Mapping[str, Callable[[Tensor], Groups]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
}
"""Each from uint8 [blocks, bytes of a block] to what it holds, with blocks in place of rows."""
_BLOCK_BYTES: Mapping[str, int] = {kind.name: kind.block_bytes for kind in TENSOR_TYPES.values()}
