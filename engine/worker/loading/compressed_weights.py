"""Converts matrices that a checkpoint stores as values and scales, in tensors of their own that can come in any order.

- Matrices in FP8 with a scale for each block, as DeepSeek-V3 (arXiv 2412.19437), the published FP8 checkpoints of Qwen3
  and Qwen3-VL and some of compressed-tensors store them, are restored. What follows treats them as if they had not been
  quantized.
- Matrices of compressed-tensors become what linears store. Those of linears that are not quantized, such as an
  encoder's, are restored.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import TypeAlias

import torch
from torch import Tensor

from glimpse.engine.checkpoint.quantization import (
    PACKED_INPUTS,
    CompressedGroup,
    CompressedQuantization,
    Fp8Blocks,
    GroupQuantization,
)
from glimpse.engine.errors import CheckpointError
from glimpse.engine.worker.layers.group_quantized import pack_values

Splitter: TypeAlias = Callable[[str, Tensor], Iterable[tuple[str, Tensor]]]
"""From a stored tensor and its checkpoint name to its parts, which the model names separately."""

_VALUES = {torch.int32, torch.int8, torch.float8_e4m3fn}
"""Types of the values of quantized matrices."""


def restoring(blocks: Fp8Blocks | None, split: Splitter) -> Splitter:
    """Returns a splitter of one checkpoint's tensors, of which each is given once, that first restores them.

    Args:
        blocks: size of the blocks; None if the checkpoint has none.
        split: splits restored tensors.
    """
    if blocks is None:
        return split
    restore = BlockRestorer(blocks)
    return lambda name, stored: (part for restored in restore(name, stored) for part in split(*restored))


class Gatherer:
    """Keeps the tensors of a matrix until all of them have been given."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[str, Tensor]] = {}

    def add(self, stem: str, kind: str, tensor: Tensor, needed: Set[str]) -> Mapping[str, Tensor] | None:
        """Returns the tensors of the matrix `stem` by their kinds; None until there are those of all needed kinds."""
        parts = self._waiting.setdefault(stem, {})
        parts[kind] = tensor
        return self._waiting.pop(stem) if needed <= parts.keys() else None


class BlockRestorer:
    """Restores a matrix once its values and its scales have been given."""

    def __init__(self, blocks: Fp8Blocks) -> None:
        self._blocks = blocks
        self._gatherer = Gatherer()

    def __call__(self, name: str, stored: Tensor) -> Iterator[tuple[str, Tensor]]:
        """
        Raises:
            CheckpointError: the scales do not fit the values.
        """
        stem, _, kind = name.rpartition(".")
        is_scale = kind in ("weight_scale_inv", "weight_scale")
        if not is_scale and stored.dtype is not torch.float8_e4m3fn:
            yield name, stored
            return
        kind = "scale" if is_scale else "values"
        if parts := self._gatherer.add(stem, kind, stored, {"values", "scale"}):
            yield f"{stem}.weight", self._restore(stem, parts["values"], parts["scale"])

    def _restore(self, stem: str, values: Tensor, scales: Tensor) -> Tensor:
        """Returns float32 [out, in]. Blocks at the right and bottom edges may be smaller."""
        rows, columns = values.shape
        expected = (-(-rows // self._blocks.rows), -(-columns // self._blocks.columns))
        if scales.shape != expected:
            raise CheckpointError(
                f"scales of '{stem}.weight': expected shape {[*expected]} for blocks of {self._blocks.rows} × "
                f"{self._blocks.columns}, got {[*scales.shape]}"
            )
        restored = values.float()
        factors = scales.float().repeat_interleave(self._blocks.rows, dim=0)[:rows]
        for block, part in enumerate(restored.split(self._blocks.columns, dim=1)):
            part.mul_(factors[:, block : block + 1])
        return restored


class CompressedConverter:
    """Converts from the names and layouts of compressed-tensors (compressed_tensors/compressors)."""

    def __init__(self, scheme: CompressedQuantization, destinations: Mapping[str, Tensor]) -> None:
        self._scheme, self._destinations, self._gatherer = scheme, destinations, Gatherer()

    def __call__(self, name: str, stored: Tensor) -> Iterator[tuple[str, Tensor]]:
        """
        Raises:
            CheckpointError: a tensor has a type or a shape that the format does not have.
        """
        stem, _, kind = name.rpartition(".")
        is_part = stored.dtype in _VALUES if kind == "weight" else kind.startswith("weight_")
        group = self._scheme.group_of(stem) if is_part else None
        if group is None:
            yield name, stored
            return
        kind, needed = kind.replace("_packed", ""), _needed(group)
        if kind in needed and (parts := self._gatherer.add(stem, kind, stored, needed)):
            converted = _converted(stem, group, parts)
            if f"{stem}.scale" not in self._destinations:
                converted = {"weight": _restored(converted, group)}
            elif isinstance(group.scheme, GroupQuantization):
                check_inputs(f"{stem}.weight", converted["weight"])
                converted["weight"] = pack_values(converted["weight"], group.scheme.bits)
            yield from ((f"{stem}.{part}", tensor) for part, tensor in converted.items())


def _needed(group: CompressedGroup) -> Set[str]:
    """Returns the kinds of a matrix's tensors. Shapes are known; zero points of symmetric weights are zero."""
    has_order = isinstance(group.scheme, GroupQuantization) and group.scheme.desc_act
    optional = {"weight_zero_point": group.has_zero_points, "weight_g_idx": has_order}
    return {"weight", "weight_scale", *(kind for kind, is_needed in optional.items() if is_needed)}


def _converted(stem: str, group: CompressedGroup, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns what a linear stores, its weight not yet packed."""
    weight, scheme = parts["weight"], group.scheme
    bits = scheme.bits if isinstance(scheme, GroupQuantization) else 8
    values = weight if scheme == "fp8" else _unsigned(f"{stem}.weight", weight, bits)
    group_size = (isinstance(scheme, GroupQuantization) and scheme.group_size) or values.shape[1]
    shape = torch.Size((len(values), values.shape[1] // group_size))
    scale = _by_group(f"{stem}.weight_scale", parts["weight_scale"], shape)
    if not isinstance(scheme, GroupQuantization):
        return {"weight": values if scheme == "fp8" else (values ^ 128).view(torch.int8), "scale": scale}
    if (zero := parts.get("weight_zero_point")) is None:
        zero = torch.full_like(scale, 2 ** (bits - 1), dtype=torch.uint8)
    else:
        zero = _unsigned(f"{stem}.weight_zero_point", zero.reshape(-1, shape[1]).T, bits).T[: shape[0]]
        zero = _by_group(f"{stem}.weight_zero_point", zero, shape)
    order = {"group_index": parts["weight_g_idx"].int()} if scheme.desc_act else {}
    return {"weight": values, "scale": scale, "zero": zero, **order}


def _by_group(name: str, numbers: Tensor, shape: torch.Size) -> Tensor:
    """Returns the numbers of groups, [out, groups]; a single one is that of all."""
    numbers = numbers if numbers.dim() > 1 else numbers.reshape(-1, 1)
    if numbers.shape != shape and numbers.numel() != 1:
        raise CheckpointError(f"tensor {name!r}: expected shape {[*shape]} from config.json, got {[*numbers.shape]}")
    return numbers.expand(shape)


def _unsigned(name: str, stored: Tensor, bits: int) -> Tensor:
    """Returns signed integers plus half of their range, uint8 [rows, columns], from words of columns or from int8."""
    if stored.dtype is torch.int8:
        return (stored.to(torch.int16) + 2 ** (bits - 1)).to(torch.uint8)
    check_words(name, stored)
    return unpack_words(stored, bits)


def _restored(converted: Mapping[str, Tensor], group: CompressedGroup) -> Tensor:
    """Returns float32 [out, in]."""
    values, scale = converted["weight"].float(), converted["scale"].float()
    if not isinstance(group.scheme, GroupQuantization):
        return values * scale
    index = converted.get("group_index")
    if index is None:
        index = torch.arange(values.shape[1], device=values.device) // (group.scheme.group_size or values.shape[1])
    return (values - converted["zero"].float()[:, index]) * scale[:, index]


def unpack_words(words: Tensor, bits: int) -> Tensor:
    """int32 [rows, words] → uint8 [rows, fields], a word's lowest bits first."""
    octets = words.contiguous().view(torch.uint8)  # little-endian
    if bits == 8:
        return octets
    return torch.stack([octets & 15, octets >> 4], dim=-1).flatten(1)


def check_words(name: str, words: Tensor) -> None:
    """
    Raises:
        CheckpointError: a tensor is no matrix of words.
    """
    if words.dtype is not torch.int32 or words.dim() != 2:
        raise CheckpointError(f"tensor {name!r}: expected an int32 matrix, got {words.dtype} of shape {[*words.shape]}")


def check_inputs(name: str, values: Tensor) -> None:
    """
    Raises:
        CheckpointError: a matrix, [out, in], has a number of inputs that cannot be packed.
    """
    if values.shape[1] % PACKED_INPUTS:
        raise CheckpointError(f"tensor {name!r}: expected a multiple of {PACKED_INPUTS} inputs, got {values.shape[1]}")
